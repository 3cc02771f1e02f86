"""A smaller rank is paid for by the blend: what was preserved stays as it is, if there is room for it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lora_alloy.api import Merged, load, merge
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.full import Dense
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.combine import combined_keeping
from lora_alloy.merging.recipe import Recipe
from lora_alloy.proving import verify
from lora_alloy_testing.builders import dense, difference, entry_of, file_of, on_targets, toy_lora, write_lora

KEPT = toy_lora(3, rank=3)
BLENDED = [toy_lora(1, rank=4), toy_lora(2, rank=4)]
SHRUNK = [{"rank": 6}, {"tolerance": 0.3}, {"rank": 7, "tolerance": 0.05}]


def stack() -> list[Entry]:
    blended = [Entry(file_of(lora, f"ink {n}")) for n, lora in enumerate(BLENDED)]
    return [Entry(file_of(KEPT, "style"), 0.7, preserve=True), *blended]


def rests(result: Merged) -> dict[str, np.ndarray]:
    """What a merge adds beside the preserved LoRA."""
    kept = on_targets(KEPT)
    return {name: found - 0.7 * kept[name].reshape(found.shape) for name, found in dense(result).items()}


@pytest.mark.parametrize("shrink", SHRUNK, ids=str)
def test_what_is_left_beside_it_is_the_blend_at_a_smaller_rank(shrink):
    result = merge(stack(), Recipe(**shrink))
    for patch, rest in zip(result, rests(result).values(), strict=True):
        values = np.linalg.svd(rest.reshape(rest.shape[0], -1), compute_uv=False)
        assert int((values > 1e-5 * values[0]).sum()) == patch.rank - 3


@pytest.mark.parametrize("shrink", SHRUNK, ids=str)
def test_the_blend_is_the_best_of_its_rank_and_the_error_is_stated(shrink):
    whole, result = merge(stack()), merge(stack(), Recipe(**shrink))
    exact, found = rests(whole), rests(result)
    for patch, name in zip(result, found, strict=True):
        flat = exact[name].reshape(exact[name].shape[0], -1)
        left, values, right = np.linalg.svd(flat, full_matrices=False)
        rank = patch.rank - 3
        best = left[:, :rank] * values[:rank] @ right[:rank]
        assert np.linalg.norm(found[name].reshape(flat.shape) - best) < 1e-5 * np.linalg.norm(flat)
        assert patch.error == pytest.approx(difference(dense(result)[name], dense(whole)[name]), abs=1e-5)
        if "rank" not in shrink:
            assert patch.error <= shrink["tolerance"]


def test_a_weight_that_cannot_have_the_rank_loses_nothing():
    """Eleven directions on ten columns: the sum fits in ten, exactly."""
    whole = merge(stack())
    found = {str(patch.target): patch for patch in whole}
    (narrow,) = (name for name in found if name.endswith("ff.net.0.proj"))
    assert found[narrow].rank == 10
    assert found[narrow].error < 1e-6
    assert difference(rests(whole)[narrow], rests(merge(stack(), Recipe(rank=64)))[narrow]) < 1e-5


def test_without_room_for_it_the_sum_is_what_comes_closest():
    result, whole = merge(stack(), Recipe(rank=2)), merge(stack())
    for patch, exact in zip(result, dense(whole).values(), strict=True):
        flat = exact.reshape(exact.shape[0], -1)
        tail = np.linalg.svd(flat, compute_uv=False)[2:]
        assert patch.rank == 2
        assert patch.error == pytest.approx(np.linalg.norm(tail) / np.linalg.norm(flat), rel=1e-3)


@pytest.mark.parametrize("gain", [1.0, 0.5, -1.3])
def test_a_rank_on_saving_keeps_it_too_and_the_file_verifies(gain, tmp_path: Path):
    paths = [write_lora(tmp_path / f"{n}.safetensors", lora) for n, lora in enumerate((KEPT, *BLENDED))]
    entries = [entry_of(paths[0], 0.7, preserve=True), *(entry_of(path) for path in paths[1:])]
    result = merge(entries)
    result.save(tmp_path / "out.safetensors", gain=gain, clip_gain=gain, rank=6)
    file, kept = load(tmp_path / "out.safetensors"), on_targets(KEPT)
    for name, module in file.modules.items():
        if min(module.shape[:2]) < 11:
            continue  # the merge has joined its directions already, to fit
        flat = file.load(module).dense().double().numpy().reshape(module.shape[0], -1)
        rest = flat - gain * 0.7 * kept[name].reshape(flat.shape)
        values = np.linalg.svd(rest, compute_uv=False)
        assert int((values > 1e-5 * values[0]).sum()) == 3
    assert verify(tmp_path / "out.safetensors", entries).read_error == 0.0


@pytest.mark.parametrize(("rank", "tolerance"), [(6, 0.0), (0, 0.3)])
def test_beside_a_full_difference_it_stays_exactly_too(rank, tolerance):
    source = torch.Generator().manual_seed(0)
    matrix, up, down = (torch.randn(*size, generator=source) for size in ((24, 16), (24, 3), (3, 16)))
    deltas = [Dense(matrix, 1.0, (24, 16)), LowRank(up, down, 2.0, (24, 16))]
    delta, kept, lost = combined_keeping(deltas, [0.5, 0.7], [False, True], rank, tolerance)
    rest = delta.flat().double().numpy() - 0.7 * 2.0 * (up.double() @ down.double()).numpy()
    values = np.linalg.svd(rest, compute_uv=False)
    assert kept == 3 and int((values > 1e-5 * values[0]).sum()) == delta.rank - 3
    exact = 0.5 * matrix.double().numpy() + 0.7 * 2.0 * (up.double() @ down.double()).numpy()
    assert lost == pytest.approx(difference(delta.flat().double().numpy(), exact), abs=1e-6)
