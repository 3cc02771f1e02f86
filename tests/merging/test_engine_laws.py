"""Laws of the whole engine: files on disk, a merge, and what its patches add, multiplied out."""

from itertools import permutations
from pathlib import Path

import pytest
import torch

from lora_alloy.lora.stack import Entry
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.presets import PRESETS
from lora_alloy.merging.recipe import REFINEMENTS, Recipe
from lora_alloy.sparsify import SPARSIFIERS
from lora_alloy_testing import reference
from lora_alloy_testing.builders import (
    TOY,
    difference,
    entry_of,
    largest_difference,
    merged,
    on_targets,
    toy_lora,
    write_lora,
)

EXACT = 2e-6  # float32 factors, relative to the norm of the target

RECIPES = {
    **{name: Recipe(method=name) for name in METHODS},
    **{f"{name}, no auto-strength": Recipe(method=name, auto_strength=False) for name in METHODS},
    **{f"{name} before a sum": Recipe(method="weighted_sum", sparsify=name) for name in SPARSIFIERS},
    **{f"{name} before TIES": Recipe(method="ties", sparsify=name) for name in SPARSIFIERS},
    **{f"TIES with {name}": Recipe(method="ties", enhance=name) for name in REFINEMENTS["full"]},
    "TIES by count": Recipe(method="ties", divisor="count"),
    "refined karcher": Recipe(method="karcher", enhance="refine"),
    "fully refined TIES": Recipe(method="ties", enhance="full", sparsify="della_conflict"),
    "consensus behind KnOTS": Recipe(method="consensus", enhance="knots"),
    **{f"{name} preset": PRESETS[name] for name in PRESETS},
    "auto, no auto-strength": Recipe(auto_strength=False),
    "slerp to the strongest": Recipe(method="slerp", global_scale="strongest"),
    "sum to the mean": Recipe(method="weighted_sum", global_scale="mean"),
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Four LoRAs of different ranks, alphas and sizes; the second lacks one target, the third has a mid."""
    loras = [
        toy_lora(1, rank=4, alpha=2.0),
        toy_lora(2, rank=8, names=list(TOY)[1:]),
        toy_lora(3, rank=2, alpha=2.0, size=0.2),
        toy_lora(4, rank=16, alpha=1.0, size=0.2),
    ]
    return [write_lora(tmp_path / f"{place}.safetensors", lora) for place, lora in enumerate(loras)]


def entries(files: list[Path], *strengths: float) -> list[Entry]:
    return [entry_of(path, strength) for path, strength in zip(files, strengths, strict=False)]


@every_recipe
@pytest.mark.parametrize("strength", [1.0, -1.0, 0.4, -0.7, 3.0, 1e-3])
def test_one_lora_alone_is_unchanged(recipe, strength, tmp_path):
    lora = toy_lora(1, alpha=2.0)
    path = write_lora(tmp_path / "ink.safetensors", lora)
    expected = {target: strength * delta for target, delta in on_targets(lora).items()}
    assert largest_difference(merged([entry_of(path, strength)], recipe), expected) < EXACT


@every_recipe
def test_one_lora_alone_has_its_own_strength_on_the_text_encoders(recipe, tmp_path):
    lora = toy_lora(1)
    path = write_lora(tmp_path / "ink.safetensors", lora)
    expected = {
        target: (0.25 if target.startswith("text_encoders.") else -0.5) * delta
        for target, delta in on_targets(lora).items()
    }
    assert largest_difference(merged([entry_of(path, -0.5, 0.25)], recipe), expected) < EXACT


@every_recipe
@pytest.mark.parametrize("factor", [0.5, 3.0, -1.0, -0.1])
def test_scaling_all_strengths_scales_the_result(recipe, factor, files):
    once = merged(entries(files, 1.0, -0.6, 0.8), recipe)
    again = merged(entries(files, factor, -0.6 * factor, 0.8 * factor), recipe)
    assert largest_difference(again, {target: factor * delta for target, delta in once.items()}) < EXACT


@every_recipe
def test_a_negative_strength_is_a_negated_lora(recipe, files, tmp_path):
    if recipe.sparsify not in ("none", "trim"):
        pytest.skip("chance is drawn by a file's content, and the negated file is another one")
    negated = {name: factors.times(-1.0) for name, factors in toy_lora(1, rank=4, alpha=2.0).items()}
    other = write_lora(tmp_path / "negated.safetensors", negated)
    found = merged(entries(files, -0.9, 0.5, 0.7), recipe)
    expected = merged([entry_of(other, 0.9), *entries(files, 0.0, 0.5, 0.7)[1:]], recipe)
    assert largest_difference(found, expected) < EXACT


@every_recipe
def test_the_same_file_twice_counts_with_its_summed_strength(recipe, files):
    twice = [*entries(files, 0.5, 0.8), entry_of(files[0], 0.3)]
    assert largest_difference(merged(twice, recipe), merged(entries(files, 0.8, 0.8), recipe)) == 0.0


@pytest.mark.parametrize("method", reference.BLENDS)
def test_an_average_of_one_lora_under_two_names_is_that_lora(method, tmp_path):
    lora = toy_lora(1)
    pair = [write_lora(tmp_path / f"{name}.safetensors", lora, metadata={"name": name}) for name in "ab"]
    found = merged([entry_of(path) for path in pair], Recipe(method=method))
    assert largest_difference(found, on_targets(lora)) < EXACT


def test_a_sum_of_one_lora_under_two_names_has_the_summed_strength(tmp_path):
    lora = toy_lora(1)
    pair = [write_lora(tmp_path / f"{name}.safetensors", lora, metadata={"name": name}) for name in "ab"]
    plain = Recipe(method="weighted_sum", auto_strength=False)
    found = merged([entry_of(pair[0], 0.9), entry_of(pair[1], -0.2)], plain)
    assert largest_difference(found, {t: 0.7 * delta for t, delta in on_targets(lora).items()}) < EXACT


@every_recipe
@pytest.mark.parametrize("strength", [1.0, -2.0])
def test_a_lora_of_zeros_changes_nothing(recipe, strength, files, tmp_path):
    zeros = {name: factors.times(0.0) for name, factors in toy_lora(9, rank=3).items()}
    idle = write_lora(tmp_path / "zeros.safetensors", zeros)
    without = merged(entries(files, 0.9, -0.5, 0.7), recipe)
    with_it = merged([entry_of(idle, strength), *entries(files, 0.9, -0.5, 0.7)], recipe)
    assert largest_difference(with_it, without) < EXACT


@every_recipe
def test_a_strength_of_zero_is_as_if_the_lora_were_not_there(recipe, files):
    without = merged(entries(files, 0.9, -0.5), recipe)
    assert largest_difference(merged(entries(files, 0.9, -0.5, 0.0), recipe), without) == 0.0


@every_recipe
def test_a_strength_of_zero_on_one_branch_leaves_the_other_alone(recipe, files):
    """The model's part is then as without it, the text encoders' as with it, and the other way round."""
    pair, alone = entries(files, 0.9, -0.5), entries(files, 0.9)
    both, single = merged(pair, recipe), merged(alone, recipe)
    clip_only = merged([alone[0], entry_of(files[1], 0.0, -0.5)], recipe)
    model_only = merged([alone[0], entry_of(files[1], -0.5, 0.0)], recipe)
    for target in both:
        is_clip = target.startswith("text_encoders.")
        assert difference(clip_only[target], (both if is_clip else single)[target]) < EXACT
        assert difference(model_only[target], (single if is_clip else both)[target]) < EXACT


@every_recipe
@pytest.mark.parametrize("strength", [1.0, -0.8])
def test_preserve_adds_exactly_the_lora_on_top_of_the_rest(recipe, strength, files, tmp_path):
    kept = toy_lora(5, rank=6, alpha=3.0, size=0.15)
    path = write_lora(tmp_path / "style.safetensors", kept)
    rest = merged(entries(files, 0.9, -0.5, 0.7), recipe)
    found = merged([entry_of(path, strength, preserve=True), *entries(files, 0.9, -0.5, 0.7)], recipe)
    expected = {target: rest[target] + strength * delta for target, delta in on_targets(kept).items()}
    assert largest_difference(found, expected) < EXACT


@every_recipe
def test_two_preserved_loras_alone_simply_add_up(recipe, tmp_path):
    first, second = toy_lora(5), toy_lora(6)
    paths = [write_lora(tmp_path / f"{n}.safetensors", lora) for n, lora in (("one", first), ("two", second))]
    found = merged([entry_of(path, 1.5, preserve=True) for path in paths], recipe)
    one, two = on_targets(first), on_targets(second)
    assert largest_difference(found, {target: 1.5 * (one[target] + two[target]) for target in one}) < EXACT


@every_recipe
def test_one_file_may_be_preserved_and_blended_at_once(recipe, files):
    blended = merged(entries(files, 0.9, 0.5), recipe)
    found = merged([entry_of(files[0], 0.3, preserve=True), *entries(files, 0.9, 0.5)], recipe)
    own = merged(entries(files, 0.3), recipe)
    expected = {target: delta + own.get(target, 0.0) for target, delta in blended.items()}
    assert largest_difference(found, expected) < EXACT


@every_recipe
def test_the_order_of_the_stack_does_not_change_a_single_bit(recipe, files):
    given = entries(files, 0.9, -0.5, 0.7)
    first = merged(given, recipe)
    for order in permutations(given):
        again = merged(order, recipe)
        assert all((again[target] == first[target]).all() for target in first)


@every_recipe
def test_files_and_tensors_in_memory_are_left_as_they_were(recipe, files):
    before = [path.read_bytes() for path in files]
    given = entries(files, 0.9, -0.5, 0.7)
    views = [{name: entry.file.tensors.read(name) for name in entry.file.tensors.infos} for entry in given]
    copies = [{name: value.clone() for name, value in view.items()} for view in views]
    merged(given, recipe)
    assert [path.read_bytes() for path in files] == before
    for view, copy in zip(views, copies, strict=True):
        assert all(torch.equal(view[name], copy[name]) for name in view)


@every_recipe
def test_merging_twice_gives_the_same_bits(recipe, files):
    first, second = (merged(entries(files, 0.9, -0.5, 0.7), recipe) for _ in range(2))
    assert all((first[target] == second[target]).all() for target in first)
