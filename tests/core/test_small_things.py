"""Chance by name, hashes by content, progress that is told, and threads that are given back."""

import hashlib

import pytest
import torch

from lora_alloy.core.errors import FileError
from lora_alloy.core.hashing import file_sha256, tensors_sha256
from lora_alloy.core.progress import told
from lora_alloy.core.rng import spread
from lora_alloy.core.threads import one_thread


@pytest.mark.parametrize(
    ("count", "size"), [(64, 3072), (5, 6), (64, 65), (1, 10), (512, 12288), (7, 7), (9, 3)]
)
def test_places_are_distinct_ascending_and_within_bounds(count, size):
    found = spread(count, size, "a target").tolist()
    assert found == sorted(set(found))
    assert 0.8 * min(count, size) <= len(found) <= min(count, size)
    assert 0 <= found[0] <= found[-1] < size


def test_places_depend_on_the_name_alone():
    assert spread(64, 3072, "a").equal(spread(64, 3072, "a"))
    assert not spread(64, 3072, "a").equal(spread(64, 3072, "b"))
    # Typed in: other places would give every stored analysis other numbers.
    assert spread(4, 100, "a target").tolist() == [7, 45, 68, 83]


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_places_are_spread_evenly(name):
    """Golden-ratio steps leave no gap of more than three times the mean."""
    found = spread(64, 3072, name)
    gaps = torch.diff(found, prepend=found[-1:] - 3072)
    assert int(gaps.max()) <= 3 * 3072 / 64


def test_a_files_hash_is_the_one_that_model_sites_show(tmp_path):
    content = bytes(range(256)) * 9000
    (tmp_path / "x").write_bytes(content)
    assert file_sha256(tmp_path / "x") == hashlib.sha256(content).hexdigest()
    with pytest.raises(FileError, match="cannot be read"):
        file_sha256(tmp_path / "none")


def test_tensors_hash_by_name_dtype_shape_and_value():
    base = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
    first = tensors_sha256(base)
    assert tensors_sha256(dict(reversed(base.items()))) == first
    assert tensors_sha256({"a": base["a"].T.contiguous().T, "b": base["b"]}) == first
    others = [
        {"a": base["a"].half(), "b": base["b"]},
        {"a": base["a"].reshape(3, 2), "b": base["b"]},
        {"a": base["a"] + 1, "b": base["b"]},
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"]},
    ]
    assert len({first, *map(tensors_sha256, others)}) == 6


def test_progress_is_told_first_and_after_every_item():
    steps: list[tuple[str, int, int]] = []
    seen = []
    for item in told("ab", 2, "work", lambda *step: steps.append(step)):
        seen.append((item, len(steps)))
    assert steps == [("work", 0, 2), ("work", 1, 2), ("work", 2, 2)]
    assert seen == [("a", 1), ("b", 2)]


def test_threads_are_given_back_whatever_happens():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            with one_thread():
                pass
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(KeyError), one_thread():
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
