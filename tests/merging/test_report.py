"""What the report says is true of the result, in the cases where that takes a second look."""

from dataclasses import replace

import numpy as np
import pytest

from lora_alloy.api import merge
from lora_alloy.lora.entries import Model
from lora_alloy.lora.keys import family, key_map
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing import reference
from lora_alloy_testing.builders import TOY, Factors, dense, file_of, on_targets, toy_lora
from lora_alloy_testing.flux import flux_lora, fused
from lora_alloy_testing.reference import Voice

PLAIN = Recipe(method="weighted_sum", auto_strength=False)


def entry(lora: dict[str, Factors], label: str = "ink", *strengths: float) -> Entry:
    return Entry(file_of(lora, label), *strengths)


def turned(lora: dict[str, Factors], aside: float) -> dict[str, Factors]:
    """The opposite of a LoRA, but for a little of another one."""
    other = toy_lora(99)
    return {name: replace(one, up=-one.up + aside * other[name].up) for name, one in lora.items()}


@pytest.mark.parametrize("method", ["slerp", "karcher"])
def test_where_loras_all_but_cancel_a_note_says_that_their_average_is_taken(method):
    first = toy_lora(1)
    told = merge([entry(first), entry(turned(first, 1e-3), "anti")], Recipe(method=method)).report
    (note,) = (note for note in told.notes if "all but cancel" in note)
    assert note.startswith("On 4 of 4 targets") and "average" in note
    assert note in told.text()
    assert "-0%" not in told.text()


def test_loras_that_do_not_cancel_get_no_such_note():
    assert merge([entry(toy_lora(1)), entry(toy_lora(2))]).report.notes == ()
    opposed = [entry(toy_lora(1)), entry(turned(toy_lora(1), 1e-3))]
    assert merge(opposed, Recipe(method="weighted_average")).report.notes == ()


def test_a_lora_that_adds_nothing_is_named():
    zeros = {name: factors.times(0.0) for name, factors in toy_lora(2).items()}
    told = merge([entry(toy_lora(1)), entry(zeros, "idle")]).report
    assert told.notes == ("`idle` changes nothing: at its strengths, all that it adds is zero.",)


def test_a_lora_without_a_target_here_is_not_called_fully_there():
    names = list(TOY)
    known = {name: route for name, route in key_map(family("sd15")).items() if not route.target.is_clip}
    model = Model(known, {TOY[name][0]: TOY[name][1] for name in names[:3]}, has_clip=False)
    stack = build_stack([entry(toy_lora(1)), entry(toy_lora(2, names=names[3:]), "words")], model)
    there, gone = merge(stack).report.sources
    assert (there.retention, gone.retention) == (1.0, 0.0)
    assert gone.target_count == 0


@pytest.mark.parametrize("shrink", [{"rank": 2}, {"tolerance": 0.4}], ids=str)
def test_retention_is_that_of_a_result_of_smaller_rank(shrink):
    loras = [toy_lora(1), toy_lora(2, rank=8)]
    result = merge([entry(lora) for lora in loras], replace(PLAIN, **shrink))
    blended = dense(result)
    for told, lora in zip(result.report.sources, loras, strict=True):
        voice = Voice({name: delta.reshape(blended[name].shape) for name, delta in on_targets(lora).items()})
        assert told.retention == pytest.approx(reference.retention(blended, voice), abs=1e-5)
        assert told.retention < 0.95


def test_the_suggested_strength_is_the_mean_norm_of_what_is_heard_over_that_of_the_result():
    loras = [toy_lora(1), toy_lora(2, size=0.15), toy_lora(3)]
    entries = [entry(loras[0], "a", 1.0), entry(loras[1], "b", -0.5, 0.5), entry(loras[2], "c", 0.0, 1.0)]
    result = merge(entries, Recipe(method="weighted_average"))
    inputs, merged = 0.0, 0.0
    voices = [
        Voice(on_targets(lora), *w) for lora, w in zip(loras, [(1.0,), (-0.5, 0.5), (0.0, 1.0)], strict=True)
    ]
    for name, found in dense(result).items():
        loud = [abs(voice.on(name)) * reference.norm(voice.deltas[name]) for voice in voices]
        inputs += float(np.mean([one for one in loud if one > 0]))
        merged += reference.norm(found)
    assert 1.0 < inputs / merged < 3.0
    assert result.report.suggested_strength == pytest.approx(inputs / merged, rel=1e-5)
    assert f"Up to strength {inputs / merged:.2f}" in result.report.text()


@pytest.mark.parametrize(("made", "most"), [(toy_lora, 3.0), (lambda seed: fused(flux_lora(seed)), 5.0)])
def test_no_more_is_suggested_than_the_architecture_bears(made, most):
    first = made(1)
    against = {name: factors.times(-0.9) for name, factors in first.items()}
    told = merge([entry(first), entry(against, "anti")], PLAIN).report
    assert told.suggested_strength == most
