"""The quality bench, on a model of random weights: what a judgement means does not depend on training."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lora_alloy_testing.small_loras import write_small

BENCH = Path(__file__).resolve().parents[2] / "benchmarks" / "quality"
TARGETS = {
    f"lora_unet_transformer_blocks_{block}_attn_to_{end}": (96, 96) for block in (0, 3) for end in "qv"
}
STACK = ("ring_a", "red")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The two LoRAs of a concept and a style; the bench's modules can be imported."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return {
        name: write_small(tmp_path / f"{name}.safetensors", TARGETS, seed=seed)
        for seed, name in enumerate(STACK)
    }


@pytest.fixture
def bench(files):
    from merges import alone
    from network import TinyDiT
    from truth import Bench
    from zoo import ZOO, Tutor

    torch.manual_seed(0)
    model = TinyDiT().eval().requires_grad_(False)
    for block in model.transformer_blocks:
        block.norm1.linear.weight.normal_(std=0.1)  # it starts at zero, and then a block does nothing
    red = ZOO["red"]
    tutors = {
        "ring_a": ZOO["ring_a"],
        "red": Tutor(("cross", "tri"), (0, 1), red.styles, red.style_word, red.rank, red.alpha, red.seed),
    }
    return Bench(model, alone(files), tutors, images=2, everyday=("cross", "tri"))


def test_a_lora_alone_keeps_everything_and_the_base_model_nothing(bench):
    whole, nothing = bench.judge(["red"], bench.alone["red"]), bench.judge(["red"], {})
    assert whole.retention == pytest.approx([1.0]) and whole.likeness == pytest.approx([1.0])
    assert nothing.retention == pytest.approx([0.0]) and nothing.likeness == pytest.approx([0.0])
    assert whole.excess == pytest.approx(0.0, abs=1e-6) and nothing.damage == pytest.approx(0.0, abs=1e-6)
    assert whole.quality == pytest.approx(1.0) and whole.composition is None


def test_a_plain_sum_through_the_engine_is_judged_as_the_sum_of_the_deltas(bench, files):
    from merges import PLAIN_SUM, merged, recipes

    by_hand = {name: bench.alone["ring_a"][name] + bench.alone["red"][name] for name in bench.alone["red"]}
    ours = merged([files[name] for name in STACK], recipes()[PLAIN_SUM])
    for name, delta in by_hand.items():
        torch.testing.assert_close(ours[name], delta, rtol=2e-3, atol=1e-6)
    assert bench.judge(STACK, ours).quality == pytest.approx(bench.judge(STACK, by_hand).quality, abs=0.01)


def test_quality_is_the_mean_and_the_least_retention_less_the_excess_damage(files):
    from truth import Truth

    truth = Truth((0.8, -3.0), (0.5, 0.5), None, damage=0.5, damage_alone=0.3)
    assert truth.mean_retention == pytest.approx(-0.1) and truth.least_retention == -1.0
    assert truth.quality == pytest.approx((-0.1 - 1.0) / 2 - 0.2)


def test_every_registered_method_and_preset_is_judged(files):
    from merges import DEFAULT, recipes

    from lora_alloy import Recipe
    from lora_alloy.merging.methods import METHODS
    from lora_alloy.merging.presets import PRESETS

    found = recipes()
    assert found[DEFAULT] == Recipe()
    assert set(METHODS) <= {recipe.method for recipe in found.values()}
    assert {found[f"preset {name}"] for name in PRESETS} == set(PRESETS.values())


def results(of_default: float, of_method: float, damage: float):
    """One stack of each kind: the default, another method, and a plain sum that harms."""
    from merges import DEFAULT, PLAIN_SUM
    from rows import Row
    from tables import Results
    from truth import Truth
    from zoo import STACKS

    rows = []
    for kind in STACKS:
        for name, kept, harm in (
            (DEFAULT, of_default, damage),
            ("slerp, mean", of_method, 0.0),
            (PLAIN_SUM, 0.5, 0.9),
        ):
            truth = Truth((kept + harm, kept + harm), (1.0, 1.0), None, harm, 0.0)
            rows.append(Row("hot", kind, (kind, "other"), name, f"{name} {kind}", truth))
    return Results(rows)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((0.6, 0.65, 0.01), ["kept: 0.600 of 0.57", "kept: 0.050 on", "kept: 1.0%; the plain sum 90%"]),
        ((0.5, 0.65, 0.01), ["**missed**: 0.500 of 0.57", "**missed**: 0.150 on", "kept: 1.0%"]),
        ((0.6, 0.5, 0.4), ["kept: 0.600", "kept: -0.100 on", "**missed**: 40.0%; the plain sum 90%"]),
    ],
)
def test_a_promise_that_is_missed_is_called_so(files, given, says):
    from tables import promises_table

    lines = promises_table({"hot": results(*given)}).splitlines()[2:]
    for line, said in zip(lines, says, strict=True):
        assert said in line


def test_a_method_that_comes_to_the_same_as_a_set_of_the_default_is_still_one(files):
    from tables import Results

    rows = results(0.6, 0.5, 0.0).rows
    same = [replace(row, recipe=f"default, {row.recipe[:5]}") for row in rows if row.recipe == "slerp, mean"]
    assert Results([*same, *rows]).methods == ["default, slerp", "plain sum"]


def test_numbers_are_put_where_the_page_on_methods_names_a_recipe(files):
    from page import with_numbers

    found = {"hot": results(0.6, 0.5, 0.0), "gentle": results(0.25, 0.5, 0.0)}
    page = "Measured: `default`: Q – hot, – gentle. `unknown`: Q 0.1 hot, 0.2 gentle; `slerp, mean`: nothing."
    assert with_numbers(page, found) == (
        "Measured: `default`: Q 0.600 hot, 0.250 gentle. `unknown`: Q – hot, – gentle; `slerp, mean`: nothing."
    )
