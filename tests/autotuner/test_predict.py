"""What phase 1 predicts is what the merge reaches: of combinations exactly, of all else where all rows are seen."""

from dataclasses import replace

import pytest
import torch

from lora_alloy.analysis.measure import measure
from lora_alloy.api import merge
from lora_alloy.autotuner import predict
from lora_alloy.autotuner.predict import Predictor
from lora_alloy.autotuner.pulls import pulls_of
from lora_alloy.autotuner.reached import reached
from lora_alloy.autotuner.scores import own_foreign
from lora_alloy.autotuner.search import tuned
from lora_alloy.autotuner.space import candidates
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.merging.methods import METHODS, is_linear
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, file_of, toy_lora

FULL = Recipe(dtype="float32", compress="disabled")
NAMES = list(TOY)


def entries(kind: str) -> list[Entry]:
    first, second, third = (file_of(toy_lora(seed, rank=3), f"lora {seed}") for seed in (1, 2, 3))
    loud = file_of({name: one.times(3.0) for name, one in toy_lora(4, rank=5).items()}, "loud")
    some = file_of(toy_lora(5, rank=2, names=NAMES[:2]), "some")
    opposite = file_of({name: one.times(-0.9) for name, one in toy_lora(1, rank=3).items()}, "opposite")
    return {
        "three": [Entry(first, 1.0), Entry(second, 0.7, 0.2), Entry(third, -1.2)],
        "of different norms and targets": [Entry(first), Entry(loud, 0.8), Entry(some, 1.5)],
        "opposed": [Entry(first), Entry(opposite), Entry(second, 0.5)],
        "identical but for strength": [
            Entry(first),
            Entry(file_of(toy_lora(1, rank=3, dtype=torch.float16), "half")),
        ],
        "preserved": [Entry(first), Entry(second, 0.7), Entry(third, 0.4, preserve=True)],
        "masked": [Entry(first, conflict_mode="low_conflict"), Entry(second, 0.7)],
        "without a text encoder": [Entry(first, 1.0, 0.0), Entry(second, 0.5, 0.0)],
    }[kind]


KINDS = (
    "three",
    "of different norms and targets",
    "opposed",
    "identical but for strength",
    "preserved",
    "masked",
    "without a text encoder",
)


def predictor(stack):
    measured = measure(stack)
    return Predictor(stack, measured, pulls_of(stack))


def errors_of(stack, merged):
    """From values alone, whatever the plan says they are."""
    return reached(stack, [], merged.plan, merged.patches)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_what_merges_reach(kind, monkeypatch):
    monkeypatch.setattr(predict, "ROWS", 64)
    monkeypatch.setattr(predict, "TARGETS", 64)
    stack = build_stack(entries(kind))
    found = predictor(stack)
    seen = set()
    # Those that scale a blend alike are one kind; of each, one scale is enough.
    for place, (name, recipe) in enumerate(candidates(FULL).items()):
        if place % 7:
            continue
        predicted = found.of(recipe)
        if predicted.key in seen:
            continue
        seen.add(predicted.key)
        errors = errors_of(stack, merge(entries(kind), recipe))
        torch.testing.assert_close(
            predicted.errors.own, errors.own, rtol=2e-3, atol=2e-3, equal_nan=True, msg=name
        )
        torch.testing.assert_close(
            predicted.errors.foreign, errors.foreign, rtol=2e-3, atol=2e-3, equal_nan=True, msg=name
        )
    assert len(seen) > 15


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if is_linear(method)])
@pytest.mark.parametrize("scale", ["none", "mean", "strongest"])
def test_combinations_are_predicted_exactly(method, scale):
    recipe = replace(FULL, method=method, global_scale=scale)
    stack = build_stack(entries("of different norms and targets"))
    predicted = predictor(stack).of(recipe)
    assert predicted.parts == ()
    errors = errors_of(stack, merge(entries("of different norms and targets"), recipe))
    assert own_foreign(predicted.errors) == pytest.approx(own_foreign(errors), abs=1e-6)


def test_a_sample_comes_near_and_says_how_near():
    modules = {f"blocks.{at}.x": (96, 48) for at in range(40)}

    def lora(seed):
        chance = torch.Generator().manual_seed(seed)
        return {
            f"{name}.lora_A.weight": torch.randn(4, columns, generator=chance)
            for name, (_, columns) in modules.items()
        } | {
            f"{name}.lora_B.weight": torch.randn(rows, 4, generator=chance) * torch.rand(1, generator=chance)
            for name, (rows, _) in modules.items()
        }

    from lora_alloy.lora.file import lora_in_memory

    given = [Entry(lora_in_memory(f"lora {seed}", lora(seed), {})) for seed in (1, 2, 3)]
    stack = build_stack(given)
    found = predictor(stack)
    for method in ("ties", "consensus", "knots_ties"):
        recipe = replace(FULL, method=method, global_scale="mean")
        predicted = found.of(recipe)
        errors = errors_of(stack, merge(given, recipe))
        assert len(predicted.parts) >= 6
        assert own_foreign(predicted.errors) == pytest.approx(own_foreign(errors), abs=0.02), method


def test_recipes_that_do_the_same_have_one_key():
    stack = build_stack(entries("three"))
    found = predictor(stack)
    plain = found.of(replace(FULL, method="weighted_sum", global_scale="mean", auto_strength=False))
    refined = found.of(
        replace(FULL, method="weighted_sum", global_scale="mean", auto_strength=False, enhance="knots")
    )
    louder = found.of(replace(FULL, method="weighted_sum", global_scale="strongest", auto_strength=False))
    ties = replace(FULL, method="ties", global_scale="mean", density=0.5, auto_strength=False)
    assert plain.key == refined.key != louder.key
    assert found.of(ties).key == found.of(ties).key != found.of(replace(ties, density=0.6)).key


def test_the_order_of_a_stack_changes_no_score():
    given = entries("three")
    scores = []
    for order in ([0, 1, 2], [2, 0, 1]):
        stack = build_stack([given[at] for at in order])
        found = predictor(stack)
        scores.append(
            {
                name: own_foreign(found.of(recipe).errors)
                for name, recipe in list(candidates(FULL).items())[::7]
            }
        )
    for name, score in scores[0].items():
        # SLERP is a fold from the largest on, and ties between equal norms have no first.
        assert scores[1][name] == pytest.approx(score, abs=1e-5), name


def test_with_many_loras_some_targets_stand_for_all(monkeypatch):
    given = [Entry(file_of(toy_lora(seed, rank=1), f"lora {seed}")) for seed in range(8)]
    stack = build_stack(given)
    exact = tuned(stack, FULL, top_n=1)
    monkeypatch.setattr("lora_alloy.autotuner.pulls.BUDGET", 8 * (8**3 + 8**2) * 3)
    monkeypatch.setattr("lora_alloy.autotuner.pulls.LEAST", 3)
    assert sum(len(pulls.places) for pulls in pulls_of(stack)) == 3
    some = tuned(stack, FULL, top_n=1)
    assert some.best.measured == pytest.approx(exact.best.measured, abs=0.05)
