"""Element-wise work in the engine: masks, estimates, what lies on top of it, and weights without columns."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lora_alloy.api import merge, plan, verify
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy.lora.full import Dense
from lora_alloy.lora.stack import Entry
from lora_alloy.merging import tiles
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, dense, difference, file_of, noise, toy_lora

NAME = next(iter(TOY))
TARGET = TOY[NAME][0]


def uneven(seed: int, rank: int = 8) -> LoraFile:
    """A LoRA on one larger weight, of which some rows change much and most hardly."""
    chance = torch.Generator().manual_seed(seed)
    factors = noise((640, 96), rank, seed=seed)
    rows = torch.exp(0.5 * torch.randn(640, 1, generator=chance))
    return lora_in_memory(
        f"ink {seed}",
        {f"{NAME}.lora_up.weight": factors.up * rows, f"{NAME}.lora_down.weight": factors.down},
        {},
    )


def with_bias(seed: int) -> LoraFile:
    chance = torch.Generator().manual_seed(seed)
    return lora_in_memory(
        f"ink {seed}",
        {
            f"{NAME}.diff_b": torch.randn(24, generator=chance),
            f"{NAME}.diff": torch.randn(24, 16, generator=chance),
        },
        {},
    )


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(method="ties"),
        Recipe(method="ties", enhance="refine"),
        Recipe(method="consensus"),
        Recipe(method="weighted_sum", sparsify="dare"),
        Recipe(method="karcher", sparsify="della"),
    ],
    ids=str,
)
def test_the_expected_norm_of_a_result_is_near_its_own(recipe):
    """Sampled rows alone, without what they have of the LoRAs' energy, are off by a twentieth here."""
    entries = [Entry(uneven(seed), strength) for seed, strength in ((1, 1.0), (2, 0.7), (3, -1.2))]
    (found,), told = merge(entries, recipe), plan(entries, recipe)
    assert told.targets[0].norm == pytest.approx(found.norm, rel=0.02)


@pytest.mark.parametrize("shape", [(24, 16), (640, 96)])
@pytest.mark.parametrize(
    "recipe",
    [Recipe(method="ties"), Recipe(method="weighted_sum", sparsify="dare"), Recipe(method="knots_ties")],
    ids=str,
)
def test_the_expected_norm_counts_what_a_preserved_lora_shares_with_the_blend(recipe, shape):
    style = noise(shape, 8, seed=1)
    blended = [Entry(file_of({NAME: noise(shape, 8, seed=seed)}, f"ink {seed}")) for seed in (1, 2)]
    for strength in (1.0, -1.0):
        kept = Entry(file_of({NAME: style.times(0.7)}, "style"), strength, preserve=True)
        (found,) = merge([*blended, kept], recipe)
        (told,) = plan([*blended, kept], recipe).targets
        assert told.norm == pytest.approx(found.norm, rel=0.06)


@pytest.mark.parametrize("by_row", [False, True], ids=["by entry", "by row"])
@pytest.mark.parametrize("strengths", [(1.0, 1.0), (1.0, 0.5, -0.7)], ids=str)
def test_conflict_modes_are_those_of_the_formula(strengths, by_row):
    modes = ("low_conflict", "high_conflict", "all")[: len(strengths)]
    loras = [toy_lora(seed, names=[NAME]) for seed in range(len(strengths))]
    deltas = [lora[NAME].delta for lora in loras]
    pushes = np.stack([w * delta for w, delta in zip(strengths, deltas, strict=True)])
    votes = pushes.sum(2, keepdims=True) if by_row else pushes
    agrees = np.sign(pushes) * np.sign(votes.sum(0)) > 0
    kept = {"all": np.ones_like(agrees), "low_conflict": agrees, "high_conflict": ~agrees}
    expected = sum(pushes[k] * kept[mode][k] for k, mode in enumerate(modes))
    entries = [
        Entry(file_of(lora, f"ink {k}"), w, conflict_mode=mode)
        for k, (lora, w, mode) in enumerate(zip(loras, strengths, modes, strict=True))
    ]
    recipe = Recipe(
        method="weighted_sum",
        auto_strength=False,
        enhance="column_wise" if by_row else "none",
        compress="disabled",
    )
    assert difference(dense(merge(entries, recipe))[TARGET], expected) < 1e-5


def test_two_that_push_alike_against_each_other_contest_the_place():
    lora = noise((24, 16), seed=1)
    entries = [
        Entry(file_of({NAME: lora}, "one"), conflict_mode="low_conflict"),
        Entry(file_of({NAME: lora.times(-1.0)}, "other"), conflict_mode="high_conflict"),
    ]
    recipe = Recipe(method="weighted_sum", auto_strength=False, compress="disabled")
    assert difference(dense(merge(entries, recipe))[TARGET], -lora.delta) < 1e-5


@pytest.mark.parametrize("rank", [4, 100])
def test_a_preserved_lora_is_exact_on_top_of_compressed_work(rank):
    shape = (240, 160)
    kept = noise(shape, rank, seed=5)
    blended = [Entry(file_of({NAME: noise(shape, seed=seed)}, f"ink {seed}")) for seed in (1, 2)]
    stack = [Entry(file_of({NAME: kept}, "style"), 0.8, preserve=True), *blended]
    recipe = Recipe(method="ties", compress="aggressive")
    alone, patch = (merge(entries, recipe).patches[0] for entries in (blended, stack))
    exact = merge(stack, Recipe(method="ties", compress="disabled")).patches[0].delta.flat().numpy()
    found = patch.delta.flat().numpy()
    assert patch.kept == rank
    assert difference(found - 0.8 * kept.delta, alone.delta.flat().numpy()) < 1e-4
    assert patch.error == pytest.approx(difference(found, exact), rel=1e-3)
    assert patch.norm == pytest.approx(float(np.linalg.norm(exact)), rel=1e-4)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(method="ties", compress="aggressive"),
        Recipe(method="weighted_sum", rank=4),
        Recipe(method="ties", rank=4),
        Recipe(method="weighted_sum", tolerance=0.5),
    ],
    ids=str,
)
def test_a_bias_stays_a_bias_at_every_rank(recipe, tmp_path):
    entries = [Entry(with_bias(1)), Entry(with_bias(2))]
    result = merge(entries, recipe)
    assert {patch.shape: type(patch.delta) for patch in result} == {(24, 16): LowRank, (24,): Dense}
    result.save(tmp_path / "out", rank=3)
    assert f"{TARGET}.diff_b" in _names(tmp_path / "out.safetensors")
    verify(tmp_path / "out.safetensors", entries)


def _names(path: Path) -> list[str]:
    text = path.read_bytes()
    return list(json.loads(text[8 : 8 + int.from_bytes(text[:8], "little")]))


def test_a_bias_is_not_orthogonalised_with_a_sparsifier_nor_without():
    entries = [Entry(with_bias(1)), Entry(with_bias(2))]
    plain = Recipe(method="weighted_sum", enhance="orthogonalise", auto_strength=False, compress="disabled")
    thinned = replace(plain, sparsify="dare", density=1.0)
    one, other = dense(merge(entries, plain)), dense(merge(entries, thinned))
    for name in one:
        assert difference(one[name], other[name]) < 1e-5
    bias = next(name for name in one if name.endswith(".bias"))
    whole = sum(
        entry.file.load(entry.file.modules[f"{NAME}.bias"]).dense().double().numpy() for entry in entries
    )
    assert difference(one[bias], whole) < 1e-6


@pytest.mark.parametrize("scale", ["mean", "strongest"])
@pytest.mark.parametrize("method", ["ties", "knots_ties"])
def test_what_cancels_has_no_plain_sum_to_be_as_loud_as(method, scale):
    lora = noise((24, 16), seed=1)
    entries = [Entry(file_of({NAME: lora}, "one")), Entry(file_of({NAME: lora.times(-1.0)}, "other"))]
    result = merge(entries, Recipe(method=method, global_scale=scale))
    assert "no louder than their plain sum" in result.plan.scales[0].reason
    assert not dense(result)[TARGET].any()


ELEMENT_WISE = [
    Recipe(method="ties", enhance="refine"),
    Recipe(method="weighted_sum", sparsify="dare_conflict"),
    Recipe(method="weighted_average", sparsify="della"),
    Recipe(method="ties", sparsify="trim", density=0.3),
]


@pytest.mark.parametrize("recipe", ELEMENT_WISE, ids=str)
def test_small_tiles_give_the_values_of_large_ones(recipe, monkeypatch):
    entries = [Entry(uneven(seed), 0.5 * seed) for seed in (1, 2, 3)]
    (whole,) = merge(entries, recipe)
    monkeypatch.setattr(tiles, "ENTRIES", 96 * 7)
    (tiled,) = merge(entries, recipe)
    assert difference(tiled.delta.flat().numpy(), whole.delta.flat().numpy()) < 1e-5
