"""The whole engine against slow dense references: blend, global scale, auto-strength, retention, strengths."""

from pathlib import Path

import numpy as np
import pytest

from lora_alloy.api import Merged, merge
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing import reference
from lora_alloy_testing.builders import (
    TOY,
    dense,
    entry_of,
    largest_difference,
    on_targets,
    toy_lora,
    write_lora,
)
from lora_alloy_testing.reference import PLAIN, Voice

CLOSE = 3e-6
STACKS = {
    "two alike": [(1.0, None), (1.0, None)],
    "two": [(0.8, None), (1.3, 0.2)],
    "one negative": [(0.8, None), (-0.6, None), (1.0, None)],
    "four": [(1.0, None), (0.5, 0.1), (-0.25, 0.7), (2.0, -1.0)],
    "all negative": [(-1.0, None), (-0.3, None)],
    "silent text encoders": [(1.0, 0.0), (0.7, 0.5), (0.4, 0.0)],
}


def loras(tmp_path: Path, count: int = 4) -> tuple[list[Path], list[dict[str, np.ndarray]]]:
    """LoRAs with ranks, alphas and targets of their own; the first and the last are the same on one target."""
    first, shared = toy_lora(1, rank=4, alpha=2.0, size=0.2), next(iter(TOY))
    made = [
        first,
        toy_lora(2, rank=8, names=list(TOY)[1:], size=0.2),
        toy_lora(3, rank=2, size=0.4),
        {**toy_lora(4, rank=6, size=0.1), shared: first[shared]},
    ][:count]
    paths = [write_lora(tmp_path / f"{place}.safetensors", lora) for place, lora in enumerate(made)]
    return paths, [on_targets(lora) for lora in made]


def played(
    tmp_path: Path, strengths: list[tuple[float, float | None]], preserved: int | None = None
) -> tuple[list[Entry], list[Voice]]:
    paths, deltas = loras(tmp_path, len(strengths))
    flags = [place == preserved for place in range(len(strengths))]
    entries = [entry_of(p, *w, preserve=flag) for p, w, flag in zip(paths, strengths, flags, strict=True)]
    voices = [Voice(d, *w, preserve=flag) for d, w, flag in zip(deltas, strengths, flags, strict=True)]
    return entries, voices


@pytest.mark.parametrize("strengths", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("method", [*METHODS, "auto"])
@pytest.mark.parametrize("scale_to", ["none", "mean", "strongest"])
@pytest.mark.parametrize("auto_strength", [True, False])
def test_a_merge_equals_the_slow_reference(strengths, method, scale_to, auto_strength, tmp_path):
    entries, voices = played(tmp_path, strengths)
    recipe = Recipe(method=method, **PLAIN, auto_strength=auto_strength, global_scale=scale_to)
    expected = reference.merge(voices, method, auto_strength=auto_strength, scale_to=scale_to)
    assert largest_difference(dense(merge(entries, recipe)), expected) < CLOSE


@pytest.mark.parametrize("preserved", [0, 1, 2])
@pytest.mark.parametrize("method", [*METHODS, "auto"])
def test_preserved_loras_take_no_part_in_any_scale(preserved, method, tmp_path):
    entries, voices = played(tmp_path, [(1.0, None), (0.5, 0.1), (0.9, 0.7), (2.0, -1.0)], preserved)
    expected = reference.merge(voices, method, scale_to="mean")
    found = dense(merge(entries, Recipe(method=method, **PLAIN, global_scale="mean")))
    assert largest_difference(found, expected) < CLOSE


@pytest.mark.parametrize("method", METHODS)
def test_relative_strengths_are_the_seeds_literal_formulas(method, tmp_path):
    entries, voices = played(tmp_path, [(0.5, None), (0.3, None), (-0.2, None)])
    recipe = Recipe(method=method, **PLAIN, auto_strength=False, strength_scale="relative")
    expected = reference.merge(voices, method, auto_strength=False, is_relative=True)
    assert largest_difference(dense(merge(entries, recipe)), expected) < CLOSE


def scales(result: Merged) -> dict[str, float]:
    return {branch.name: branch.scale for branch in result.plan.scales}


def test_the_report_states_the_energies_of_the_dense_deltas(tmp_path):
    entries, voices = played(tmp_path, [(0.8, None), (-0.6, 0.3), (1.0, None)])
    for branch in merge(entries, Recipe(method="weighted_sum")).report.scales:
        expected = [
            np.sqrt(
                sum(
                    reference.norm(voice.on(target) * delta) ** 2
                    for target, delta in voice.deltas.items()
                    if target.startswith("text_encoders.") is (branch.name == "clip")
                )
            )
            for voice in voices
        ]
        assert branch.energies == pytest.approx(expected, rel=1e-6)


def test_auto_strength_halves_two_of_the_same_and_leaves_two_opposed_alone(tmp_path):
    """The seed's nominal table: aligned 0.5, orthogonal 0.707, opposed 1."""
    lora = toy_lora(1, names=list(TOY)[:1])
    pair = [write_lora(tmp_path / f"{n}.safetensors", lora, metadata={"name": n}) for n in "ab"]
    plain = Recipe(method="weighted_sum")
    assert scales(merge([entry_of(pair[0]), entry_of(pair[1])], plain)) == {
        "model": pytest.approx(0.5, rel=1e-6)
    }
    assert scales(merge([entry_of(pair[0]), entry_of(pair[1], -1.0)], plain)) == {"model": 1.0}


def test_auto_strength_of_orthogonal_loras_is_one_over_root_two(tmp_path):
    first, second = toy_lora(1, names=list(TOY)[:1]), toy_lora(1, names=list(TOY)[1:2])
    for lora in (first, second):
        for name, factors in lora.items():
            lora[name] = factors.times(1 / float(np.linalg.norm(factors.delta)))
    pair = [write_lora(tmp_path / f"{n}.safetensors", lora) for n, lora in (("a", first), ("b", second))]
    found = scales(merge([entry_of(path) for path in pair], Recipe(method="weighted_sum")))
    assert found == {"model": pytest.approx(0.5**0.5, rel=1e-6)}


def test_auto_strength_may_be_told_how_far_to_go(tmp_path):
    lora = toy_lora(1, names=list(TOY)[:1])
    pair = [write_lora(tmp_path / f"{n}.safetensors", lora, metadata={"name": n}) for n in "ab"]
    floored = Recipe(method="weighted_sum", auto_strength_floor=0.85)
    assert scales(merge([entry_of(path) for path in pair], floored)) == {"model": 0.85}


def test_auto_strength_counts_a_negative_strength_once(tmp_path):
    """Two equal LoRAs of which one is negated in the file and one in the stack are the same pair."""
    lora = toy_lora(1, names=list(TOY)[:1])
    turned = {name: factors.times(-1.0) for name, factors in lora.items()}
    pair = [write_lora(tmp_path / f"{n}.safetensors", one) for n, one in (("a", lora), ("b", turned))]
    found = scales(merge([entry_of(pair[0]), entry_of(pair[1], -1.0)], Recipe(method="weighted_sum")))
    assert found == {"model": pytest.approx(0.5, rel=1e-6)}


def test_model_and_text_encoders_have_scales_of_their_own(tmp_path):
    same, own = toy_lora(1), toy_lora(2)
    text = [name for name in TOY if name.startswith("lora_te")]
    other = {name: (own if name in text else same)[name] for name in TOY}
    pair = [write_lora(tmp_path / f"{n}.safetensors", lora) for n, lora in (("a", same), ("b", other))]
    found = scales(merge([entry_of(path) for path in pair], Recipe(method="weighted_sum")))
    assert found["model"] == pytest.approx(0.5, rel=1e-6)
    assert 0.6 < found["clip"] < 0.85


def test_the_global_scale_is_never_louder_than_the_plain_sum(tmp_path):
    """Two that oppose each other by nine parts in ten: their mean norm would lift what is left of them."""
    first, noise = toy_lora(1), toy_lora(2)
    turned = {name: factors.times(-0.9) for name, factors in first.items()}
    pair = [write_lora(tmp_path / f"{n}.safetensors", lora) for n, lora in (("a", first), ("b", turned))]
    assert noise.keys() == first.keys()
    for scale_to in ("mean", "strongest"):
        recipe = Recipe(method="weighted_sum", global_scale=scale_to)
        result = merge([entry_of(path) for path in pair], recipe)
        one = on_targets(first)
        assert (
            largest_difference(dense(result), {target: 0.1 * delta for target, delta in one.items()}) < 1e-5
        )


@pytest.mark.parametrize("method", METHODS)
def test_retention_is_that_of_the_dense_result(method, tmp_path):
    entries, voices = played(tmp_path, [(0.8, 0.4), (-0.6, None), (1.0, 0.0), (0.3, None)], preserved=1)
    result = merge(entries, Recipe(method=method, **PLAIN))
    blended = dense(result)
    for told, voice in zip(result.report.sources, voices, strict=True):
        assert told.retention == pytest.approx(reference.retention(blended, voice), abs=1e-5)


def test_retention_of_a_block_is_that_of_its_targets(tmp_path):
    entries, voices = played(tmp_path, [(0.8, 0.4), (-0.6, None), (1.0, None)])
    result = merge(entries, Recipe(method="karcher"))
    blended = dense(result)
    blocks = {
        "input_blocks.1": [name for name in blended if ".input_blocks.1." in name],
        "clip_l.layers.3": [name for name in blended if ".layers.3." in name],
    }
    for block, targets in blocks.items():
        for told, voice in zip(result.report.sources, voices, strict=True):
            expected = reference.retention(blended, voice, [t for t in targets if t in voice.deltas])
            assert told.blocks[block] == pytest.approx(expected, abs=1e-5)


def test_a_preserved_lora_among_orthogonal_ones_is_fully_there(tmp_path):
    """Worked by hand: rows of their own make the deltas orthogonal, so nothing else pushes along them."""
    name = next(iter(TOY))
    parts = []
    for place in range(3):
        factors = toy_lora(place, names=[name])[name]
        factors.up[: 8 * place] = 0
        factors.up[8 * (place + 1) :] = 0
        parts.append({name: factors})
    paths = [write_lora(tmp_path / f"{n}.safetensors", part) for n, part in enumerate(parts)]
    stack = [entry_of(paths[0], 0.7, preserve=True), entry_of(paths[1]), entry_of(paths[2])]
    told = merge(stack, Recipe(method="weighted_average", auto_strength=False)).report
    assert [source.retention for source in told.sources] == pytest.approx([1.0, 0.5, 0.5], abs=1e-6)


def test_the_report_states_norms_ranks_and_targets_of_each_lora(tmp_path):
    entries, voices = played(tmp_path, [(0.8, 0.4), (-0.6, None)])
    for told, voice, rank in zip(merge(entries).report.sources, voices, (4, 8), strict=True):
        energy = sum(reference.norm(voice.on(target) * delta) ** 2 for target, delta in voice.deltas.items())
        assert told.norm == pytest.approx(energy**0.5, rel=1e-6)
        assert told.mean_rank == rank
        assert told.target_count == len(voice.deltas)


def test_the_stated_norm_of_every_target_is_that_of_the_result(tmp_path):
    entries, _ = played(tmp_path, [(0.8, 0.4), (-0.6, None), (1.0, None), (0.5, None)], preserved=2)
    result = merge(entries)
    for planned, patch, found in zip(result.plan.targets, result, dense(result).values(), strict=True):
        assert patch.norm == pytest.approx(reference.norm(found), rel=1e-5)
        if planned.work is None:
            assert planned.norm == pytest.approx(patch.norm, rel=1e-5)
    assert result.report.norm == pytest.approx(
        sum(reference.norm(found) ** 2 for found in dense(result).values()) ** 0.5, rel=1e-5
    )
