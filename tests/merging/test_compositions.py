"""Every method with every sparsifier and enhancers, through the engine, against their formulas one after another."""

import numpy as np
import pytest
import torch

from lora_alloy.api import merge
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.recipe import Recipe
from lora_alloy.sparsify import SPARSIFIERS
from lora_alloy_testing.builders import TOY, Factors, dense, difference, file_of, noise
from lora_alloy_testing.compositions import Composition, composed

NAME, (TARGET, SHAPE) = next(iter(TOY.items()))
ENHANCERS = ("none", "refine", "full", "knots,tall_masks")
STACKS: dict[str, list[tuple[Factors, float, str]]] = {
    "three": [
        (noise(SHAPE, 4, seed=1, alpha=2.0), 1.0, "all"),
        (noise(SHAPE, 6, seed=2, size=0.15), 0.6, "all"),
        (noise(SHAPE, 3, seed=3), -0.8, "all"),
    ],
    "four with masks": [
        (noise(SHAPE, 4, seed=11), 1.0, "low_conflict"),
        (noise(SHAPE, 4, seed=12), 0.5, "all"),
        (noise(SHAPE, 4, seed=13), -0.7, "high_conflict"),
        (noise(SHAPE, 4, seed=14), 0.9, "low_conflict"),
    ],
}


def entries_of(stack: list[tuple[Factors, float, str]]) -> list[Entry]:
    return [
        Entry(file_of({NAME: lora}, f"ink {place}"), w, conflict_mode=mode)
        for place, (lora, w, mode) in enumerate(stack)
    ]


def expected(how: Composition, entries: list[Entry], stack: list[tuple[Factors, float, str]]) -> np.ndarray:
    loras, strengths, modes = zip(*stack, strict=True)
    contents = [entry.file.sha256 for entry in entries]
    return composed(how, [lora.delta for lora in loras], strengths, modes, contents, TARGET)


def asked(how: Composition) -> Recipe:
    return Recipe(
        method=how.method,
        sparsify=how.sparsifier or "none",
        enhance=",".join(how.enhancers) or "none",
        density=how.density,
        dampening=how.dampening,
        dominance=how.dominance,
        divisor=how.divisor,
        seed=how.seed,
        auto_strength=False,
        compress="disabled",
    )


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
@pytest.mark.parametrize("sparsifier", ["", *SPARSIFIERS])
@pytest.mark.parametrize("method", METHODS)
def test_a_composition_equals_its_steps_on_dense_arrays(method, sparsifier, stack):
    entries = entries_of(stack)
    for enhance in ENHANCERS:
        enhancers = Recipe(enhance=enhance).enhancers
        how = Composition(method, sparsifier, enhancers, seed=7)
        (found,) = dense(merge(entries, asked(how))).values()
        assert difference(found, expected(how, entries, stack)) < 2e-5, enhance


@pytest.mark.parametrize("sparsifier", ["", "dare", "della_conflict"])
@pytest.mark.parametrize("method", ["ties", "knots_ties", "consensus"])
def test_its_other_settings_are_those_of_the_formulas(method, sparsifier):
    stack = STACKS["three"]
    entries = entries_of(stack)
    for enhance in ENHANCERS:
        enhancers = Recipe(enhance=enhance).enhancers
        how = Composition(method, sparsifier, enhancers, 0.3, 0.5, 2.0, "count", 11)
        (found,) = dense(merge(entries, asked(how))).values()
        assert difference(found, expected(how, entries, stack)) < 2e-5, enhance


@pytest.mark.parametrize("method", ["weighted_sum", "weighted_average", "slerp", "karcher", "normalize"])
@pytest.mark.parametrize("enhance", ["tall_masks", "knots", "column_wise"])
def test_around_a_linear_method_masks_and_bases_change_not_a_bit(method, enhance):
    """A combination of whole deltas is the same in every basis, and owners are taken out of it by law."""
    entries = entries_of(STACKS["three"])
    plain, other = (
        merge(entries, Recipe(method=method, enhance=one)).patches[0] for one in ("none", enhance)
    )
    assert torch.equal(plain.up, other.up) and torch.equal(plain.down, other.down)


@pytest.mark.parametrize("sparsifier", ["dare", "della"])
def test_the_mean_of_many_draws_is_the_sum_itself_and_the_share_that_stays_the_density(sparsifier):
    lora, other = noise(SHAPE, 4, seed=1), noise(SHAPE, 4, seed=2)
    entries = [
        Entry(file_of({NAME: lora}, "one")),
        Entry(file_of({NAME: other.times(1e-12)}, "hardly there")),
    ]
    count, draws = 60, []
    for seed in range(count):
        how = Composition("weighted_sum", sparsifier, density=0.4, seed=seed)
        (found,) = dense(merge(entries, asked(how))).values()
        draws.append(found)
    assert np.mean([np.abs(draw) > 1e-8 for draw in draws]) == pytest.approx(0.4, abs=0.015)
    # The mean of so many is as far off as one of them, over the root of their number.
    off = np.linalg.norm(draws - lora.delta, axis=(1, 2)).mean() / count**0.5
    assert np.linalg.norm(np.mean(draws, 0) - lora.delta) < 1.3 * off
