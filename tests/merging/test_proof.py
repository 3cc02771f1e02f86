"""The proof: a file that is not the merge, to the last bit, replaces nothing; and verifying it later."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lora_alloy.api import Merged, merge, verify
from lora_alloy.core import tensorfile
from lora_alloy.core.errors import AlloyError, ProofError
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import entry_of, noise, toy_lora, write_lora

OLD = b"what stood there before"


@pytest.fixture
def entries(tmp_path: Path) -> list[Entry]:
    folder = tmp_path / "in"
    folder.mkdir()
    return [
        entry_of(write_lora(folder / f"{n}.safetensors", toy_lora(n, dtype=torch.float16)), 0.8 - 0.5 * n)
        for n in range(2)
    ]


class Flipped:
    """The writer's stream with one bit of the file turned over on its way to the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.byte = 0
        self.bit = 0
        self.seen = 0
        self.serialized = tensorfile.serialized
        monkeypatch.setattr(tensorfile, "serialized", self.stream)

    def stream(self, *given: object) -> Iterator[bytes]:
        at = 0
        for piece in self.serialized(*given):  # type: ignore[arg-type]
            content = bytearray(bytes(piece))
            if at <= self.byte < at + len(content):
                content[self.byte - at] ^= 1 << self.bit
            at += len(content)
            yield bytes(content)
        self.seen = at


def untouched(path: Path) -> None:
    assert path.read_bytes() == OLD
    assert [one.name for one in path.parent.iterdir() if one.suffix == ".tmp"] == []


@pytest.mark.parametrize("naming", ["comfyui", "diffusers"])
def test_a_flipped_bit_anywhere_in_the_tensors_is_noticed_and_the_old_file_stays(
    naming, entries, tmp_path, monkeypatch
):
    result = merge(entries)
    path = tmp_path / "out.safetensors"
    result.save(path, naming=naming)
    header = int.from_bytes(path.read_bytes()[:8], "little") + 8
    flipped = Flipped(monkeypatch)
    total = path.stat().st_size
    for place in range(header, total, (total - header) // 17):
        for bit in (0, 6, 7):
            flipped.byte, flipped.bit = place, bit
            path.write_bytes(OLD)
            with pytest.raises(AlloyError):
                result.save(path, naming=naming)
            untouched(path)
    flipped.byte = total
    result.save(path, naming=naming)
    assert flipped.seen == total


def test_the_lowest_bit_of_the_smallest_entry_of_a_large_weight_is_noticed(tmp_path, monkeypatch):
    """A relative tolerance would let it pass: it is a part in a hundred million of the norm."""
    factors = noise((2048, 1024), 16, seed=1, size=1.0)
    result = merge([entry_of(write_lora(tmp_path / "in.safetensors", {"lora_unet_blocks_0_q": factors}))])
    path = tmp_path / "out.safetensors"
    result.save(path)
    patch = result.patches[0]
    at = int(patch.up.abs().argmin())
    with safe_open(path, "pt") as file:
        assert file.get_tensor("lora_unet_blocks_0_q.lora_up.weight").equal(patch.up)
    header = int.from_bytes(path.read_bytes()[:8], "little") + 8
    path.write_bytes(OLD)
    flipped = Flipped(monkeypatch)
    flipped.byte = header + 4 * at
    with pytest.raises(ProofError, match="was not saved: read back, it differs from the merge"):
        result.save(path)
    untouched(path)


@pytest.mark.parametrize("bit", [0, 6])
def test_a_flipped_bit_anywhere_in_the_header_never_leaves_a_file_that_is_not_the_merge(
    bit, entries, tmp_path, monkeypatch
):
    """It is refused, or it hit a word of the metadata: the tensors are then still the merge."""
    result = merge(entries)
    path = tmp_path / "out.safetensors"
    result.save(path)
    # Copies: safetensors maps the file, which is written over below.
    sound = {name: value.clone() for name, value in load_file(path).items()}
    header = int.from_bytes(path.read_bytes()[:8], "little") + 8
    flipped = Flipped(monkeypatch)
    flipped.bit = bit
    for place in range(0, header, 53):
        flipped.byte = place
        path.write_bytes(OLD)
        try:
            result.save(path)
        except AlloyError:
            untouched(path)
            continue
        found = load_file(path)
        assert found.keys() == sound.keys()
        assert all(found[name].equal(sound[name]) for name in sound)


def test_a_tensor_that_is_lost_on_the_way_is_noticed(entries, tmp_path, monkeypatch):
    path = tmp_path / "out.safetensors"
    path.write_bytes(OLD)
    result = merge(entries)
    serialized = tensorfile.serialized

    def without_the_last(tensors: dict[str, torch.Tensor], *rest: object) -> object:
        kept = [name for name in tensors if not name.startswith(list(tensors)[-1].rsplit(".", 1)[0])]
        return serialized({name: tensors[name] for name in kept}, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(tensorfile, "serialized", without_the_last)
    with pytest.raises(ProofError, match="has 3 modules where 4 were written"):
        result.save(path)
    untouched(path)


def test_a_sound_file_states_no_difference(entries, tmp_path):
    result = merge(entries)
    proof = result.save(tmp_path / "out")
    assert proof.read_error == 0.0
    assert proof.target_count == len(result)
    assert proof.worst in {str(patch.target) for patch in result}


class TestVerify:
    """A saved file against its inputs, merged again."""

    @pytest.fixture
    def path(self, entries: list[Entry], tmp_path: Path) -> Path:
        merge(entries).save(tmp_path / "out")
        return tmp_path / "out.safetensors"

    def rewritten(self, path: Path, change: dict[str, torch.Tensor]) -> None:
        with safe_open(path, "pt") as file:
            told = file.metadata()
        tensors = load_file(path) | change
        save_file({name: value for name, value in tensors.items() if value.numel()}, path, told)

    @pytest.mark.parametrize("method", [*METHODS, "auto"])
    @pytest.mark.parametrize("naming", ["comfyui", "kohya", "diffusers"])
    def test_proves_a_sound_file_in_every_naming_and_gain(self, method, naming, entries, tmp_path):
        merge(entries, Recipe(method=method)).save(
            tmp_path / "out", naming=naming, gain=0.7, clip_gain=1.3, rank=5
        )
        assert verify(tmp_path / "out.safetensors", entries).read_error == 0.0

    def test_proves_it_in_any_order_of_the_stack(self, entries, path):
        assert verify(path, entries[::-1]).read_error == 0.0

    def test_refuses_other_strengths(self, entries, path):
        with pytest.raises(ProofError, match="is not what these inputs give"):
            verify(path, [replace(entries[0], strength=0.81), entries[1]])

    def test_refuses_another_recipe(self, entries, path):
        with pytest.raises(ProofError, match="is not what these inputs give"):
            verify(path, entries, Recipe(method="weighted_average"))

    def test_refuses_a_changed_tensor(self, entries, path):
        name = next(name for name in load_file(path) if name.endswith("lora_up.weight"))
        changed = load_file(path)[name].clone()
        changed.view(-1)[3] *= 1.5
        self.rewritten(path, {name: changed})
        with pytest.raises(ProofError, match="is not what these inputs give"):
            verify(path, entries)

    def test_refuses_a_changed_alpha(self, entries, path):
        name = next(name for name in load_file(path) if name.endswith("alpha"))
        self.rewritten(path, {name: load_file(path)[name] * 2})
        with pytest.raises(ProofError, match="is not what these inputs give"):
            verify(path, entries)

    def test_refuses_a_missing_module(self, entries, path):
        module = next(iter(load_file(path))).rsplit(".", 2)[0]
        gone = {name: torch.zeros(0) for name in load_file(path) if name.startswith(module)}
        self.rewritten(path, gone)
        with pytest.raises(ProofError, match="has 3 modules, the merge has 4"):
            verify(path, entries)

    def test_refuses_a_module_of_another_shape(self, entries, path):
        name = next(name for name in load_file(path) if name.endswith("to_q.lora_up.weight"))
        self.rewritten(path, {name: torch.zeros(30, 8, dtype=torch.float16)})
        with pytest.raises(ProofError):
            verify(path, entries)

    def test_takes_the_same_values_in_a_wider_dtype_for_the_same(self, entries, path):
        self.rewritten(path, {name: value.float() for name, value in load_file(path).items()})
        assert verify(path, entries).read_error < 1e-7

    def test_refuses_a_file_that_does_not_say_how_it_was_made(self, entries):
        path = entries[0].file.path
        assert path is not None
        with pytest.raises(ProofError, match="does not say how it was made"):
            verify(path, entries)


def test_a_merge_that_is_stopped_leaves_nothing_behind(entries, tmp_path):
    def stop(what: str, done: int, total: int) -> None:
        if what == "merge" and done == 2:
            raise KeyboardInterrupt

    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt):
        merge(entries, progress=stop)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_merge_can_be_saved_more_than_once(entries, tmp_path):
    result: Merged = merge(entries)
    result.save(tmp_path / "one")
    result.save(tmp_path / "two", naming="kohya", gain=0.5)
    result.save(tmp_path / "three")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "three.safetensors").read_bytes()
