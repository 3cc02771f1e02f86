"""Structural LoRAs stay out of the blend, exactly; the plan says so, and files remember it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lora_alloy.api import load, merge, plan
from lora_alloy.core.errors import RecipeError
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.metadata import described
from lora_alloy.merging.plan import Plan
from lora_alloy.merging.provenance import find_sources
from lora_alloy.merging.recipe import Recipe
from lora_alloy.proving import verify
from lora_alloy_testing.builders import (
    Factors,
    dense,
    file_of,
    largest_difference,
    on_targets,
    toy_lora,
    write_lora,
)

SPEED = toy_lora(3, rank=3)
INK, WASH = toy_lora(1, rank=4), toy_lora(2, rank=4)
LCM = "lcm-lora-sdv1-5"


def stack(*names: str) -> list[Entry]:
    found = {"ink": INK, "wash": WASH}
    return [Entry(file_of(found.get(name, SPEED), name), 0.7 if name not in found else 1.0) for name in names]


def test_it_is_added_on_top_exactly_like_a_preserved_one():
    held = merge(stack("ink", LCM, "wash"))
    asked = [replace(one, preserve=one.file.label == LCM) for one in stack("ink", LCM, "wash")]
    preserved = merge(asked)
    assert all(
        torch.equal(one.up, other.up) and torch.equal(one.down, other.down)
        for one, other in zip(held, preserved, strict=True)
    )
    speed = {name: 0.7 * delta for name, delta in on_targets(SPEED).items()}
    rest = {name: found - speed[name].reshape(found.shape) for name, found in dense(held).items()}
    assert largest_difference(rest, dense(merge(stack("ink", "wash")))) < 1e-5


def test_the_report_says_which_why_and_how_to_turn_it_off():
    report = merge(stack("ink", LCM, "wash")).report
    assert [source.mark for source in report.sources] == ["", "held out", ""]
    assert "`lcm` in its name" in report.sources[1].held
    notes = [note for note in report.notes if LCM in note]
    assert len(notes) == 1 and "`hold_structural` (`--no-hold-structural`) turns that off" in notes[0]
    assert "held out" in report.text()


def test_the_switch_turns_it_off():
    off = Recipe(hold_structural=False)
    merged = merge(stack("ink", LCM, "wash"), off)
    assert not any(source.preserve or source.held for source in merged.plan.sources)
    renamed = merge(
        [
            replace(one, file=file_of(SPEED, "y")) if one.file.label == LCM else one
            for one in stack("ink", LCM, "wash")
        ]
    )
    assert largest_difference(dense(merged), dense(renamed)) < 1e-6
    assert Recipe.from_json(off.to_json()) == off


def test_one_lora_alone_is_not_held():
    merged = merge(stack(LCM))
    assert merged.plan.sources[0].held == "" and merged.plan.notes == ()
    expected = {name: 0.7 * delta for name, delta in on_targets(SPEED).items()}
    assert largest_difference(dense(merged), expected) < 1e-5


def test_structural_ones_among_themselves_are_added_up():
    entries = [Entry(file_of(INK, "sdxl_lightning_4step_lora")), Entry(file_of(WASH, "sdxl_dpo_lora"), 0.5)]
    ink, wash = on_targets(INK), on_targets(WASH)
    expected = {name: ink[name] + 0.5 * wash[name] for name in ink}
    assert largest_difference(dense(merge(entries)), expected) < 1e-5


def test_a_method_that_is_named_blends_structural_ones_among_themselves():
    entries = [Entry(file_of(INK, "sdxl_lightning_4step_lora")), Entry(file_of(WASH, "sdxl_dpo_lora"))]
    made = plan(entries, Recipe(method="slerp"))
    assert {target.method for target in made.targets} == {"slerp"}
    assert not any(source.held for source in made.sources)


def test_a_plan_replays_bit_for_bit_whatever_the_files_are_called_now():
    merged = merge(stack("ink", LCM, "wash"))
    replayed = Plan.from_json(json.loads(json.dumps(merged.plan.to_json())))
    assert replayed == merged.plan
    renamed = [
        replace(one, file=file_of(SPEED, "y")) if one.file.label == LCM else one
        for one in stack("ink", LCM, "wash")
    ]
    for one, other in zip(merged, merge(renamed, replayed), strict=True):
        assert torch.equal(one.up, other.up) and torch.equal(one.down, other.down)
    with pytest.raises(RecipeError):
        merge([replace(one, strength=0.3) for one in renamed], replayed)


@pytest.mark.parametrize("was", [LCM, "plain"])
def test_a_saved_file_verifies_after_its_sources_were_renamed(tmp_path, was):
    ink = write_lora(tmp_path / "ink.safetensors", INK)
    wash = write_lora(tmp_path / "wash.safetensors", WASH)
    speed = write_lora(tmp_path / f"{was}.safetensors", SPEED)
    proof = merge([ink, (speed, 0.7), wash]).save(tmp_path / "out")
    told = described(load(proof.path).tensors.metadata)
    assert told is not None and any(source.held for source in told.sources) == (was == LCM)
    assert verify(proof.path, find_sources(told, [tmp_path])).read_error == 0.0
    now = {LCM: "plain", "plain": LCM}[was]
    moved = speed.rename(tmp_path / f"{now}.safetensors")
    assert verify(proof.path, [ink, (moved, 0.7), wash]).read_error == 0.0


def test_it_stays_exact_at_a_smaller_rank():
    held = merge(stack("ink", LCM, "wash"), Recipe(rank=6))
    speed = on_targets(SPEED)
    for name, found in dense(held).items():
        rest = (found - 0.7 * speed[name].reshape(found.shape)).reshape(found.shape[0], -1)
        values = np.linalg.svd(rest, compute_uv=False)
        assert int((values > 1e-5 * values[0]).sum()) == 3


def decomposed(lora: dict[str, Factors]) -> dict[str, Factors]:
    """The same deltas as an extraction from a whole model stores them."""
    made = {}
    for name, factors in lora.items():
        matrix = torch.tensor(factors.delta).float()
        left, values, right = torch.linalg.svd(matrix.reshape(matrix.shape[0], -1), full_matrices=False)
        root = values[:4].sqrt()
        kernel = tuple(1 for _ in matrix.shape[2:])
        up = (left[:, :4] * root).reshape(matrix.shape[0], 4, *kernel)
        made[name] = Factors(up.half(), (root[:, None] * right[:4]).reshape(4, *matrix.shape[1:]).half())
    return made


def test_a_doubtful_name_is_believed_if_the_factors_are_singular_vectors():
    trained, cut = toy_lora(5, rank=4), decomposed(toy_lora(5, rank=4))
    for name, factors, is_held in (
        ("turbo_v1", trained, False),
        ("turbo_v1", cut, True),
        ("turbo car", cut, False),
        ("red-hat", cut, False),
    ):
        made = plan([*stack("ink", "wash"), Entry(file_of(factors, name))])
        assert bool(made.sources[2].held) == is_held, name
    assert (
        "singular vectors" in plan([*stack("ink", "wash"), Entry(file_of(cut, "turbo_v1"))]).sources[2].held
    )
