"""`func_noise` against its formula in float64, on the quality bench's own network."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lora_alloy import Recipe, merge, tune
from lora_alloy.api import stack_of
from lora_alloy.autotuner.functional import LEAST, NoiseEvaluator, patches_alone, share_kept
from lora_alloy.autotuner.search import Candidate, Trial
from lora_alloy.autotuner.verdict import Verdict
from lora_alloy.core.errors import RecipeError
from lora_alloy_testing.small_loras import write_small
from lora_alloy_testing.sweeps import shorten

BENCH = Path(__file__).resolve().parents[2] / "benchmarks" / "quality"
TARGETS = {
    f"lora_unet_transformer_blocks_{block}_attn_to_{end}": (96, 96) for block in (0, 3) for end in "qv"
}
STRENGTHS = (0.8, 1.2)


class Network:
    """The bench's network with patches on it, and what it says of noise with the prompt of each LoRA."""

    def __init__(self):
        from network import TinyDiT, targets

        torch.manual_seed(0)
        self.model = TinyDiT().eval().requires_grad_(False)
        for block in self.model.transformer_blocks:
            block.norm1.linear.weight.normal_(std=0.1)  # it starts at zero, and then a block does nothing
        self.modules = {name.replace(".", "_"): module for name, module in targets(self.model).items()}
        self.weights = {name: module.weight.data.clone() for name, module in self.modules.items()}
        self.passes = 0

    def forward(self, patches, entry):
        self.passes += 1
        return self.said({name_of(patch): patch.delta.flat() for patch in patches}, entry)

    def said(self, deltas, entry):
        assert deltas.keys() <= self.modules.keys()
        for name, module in self.modules.items():
            module.weight.data = self.weights[name] + deltas.get(name, 0.0)
        noise = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(7))
        words, styles = torch.full((6,), (10, 1)[entry]), torch.full((6,), entry)
        return self.model(noise, torch.linspace(0.9, 1, 6), words, styles)


def name_of(patch):
    return patch.target.weight.removeprefix("diffusion_model.").replace(".", "_")


@pytest.fixture
def network(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return Network()


@pytest.fixture
def entries(tmp_path):
    paths = [write_small(tmp_path / f"{seed}.safetensors", TARGETS, seed=seed, alpha=16.0) for seed in (1, 2)]
    return list(zip(map(str, paths), STRENGTHS, strict=True))


def trial_of(entries, recipe):
    merged = merge(entries, recipe)
    candidate = Candidate("it", recipe, 0.0, 0.0, None, merged.plan, -0.5)
    return Trial(merged.stack, merged.measured, candidate, merged.patches)


def by_hand(network, entries, merged):
    """The formula, in NumPy, from deltas multiplied out one by one."""
    found = []
    for entry, one in enumerate(entries):
        alone = merge([one], Recipe(method="weighted_sum", auto_strength=False, dtype="float32"))
        says = [
            network.said(deltas, entry).double().numpy()
            for deltas in (
                {name_of(patch): patch.delta.flat() for patch in merged},
                {name_of(patch): patch.delta.flat() for patch in alone},
                {},
            )
        ]
        found.append(1 - np.sum((says[0] - says[1]) ** 2) / np.sum((says[2] - says[1]) ** 2))
    return found


def test_it_is_the_formula_of_the_bench(network, entries):
    for recipe in (Recipe(), Recipe(method="weighted_sum", auto_strength=False), Recipe(method="ties")):
        trial = trial_of(entries, recipe)
        verdict = NoiseEvaluator(network.forward)(trial)
        expected = by_hand(network, entries, trial.patches)
        assert verdict.details["func_noise_of_each"] == pytest.approx(expected, abs=1e-4)
        assert verdict.final == pytest.approx(sum(expected) / 2, abs=1e-4)
        assert verdict.external is None and not verdict.error


def test_all_of_a_lora_is_1_none_of_it_0_and_the_wrong_way_less(network, entries):
    alone, base = network.forward(patches_alone(stack_of(entries), 0), 0), network.forward((), 0)
    assert share_kept(alone, alone, base) == 1.0 and share_kept(base, alone, base) == 0.0
    assert share_kept(2 * base - alone, alone, base) == pytest.approx(-3.0)
    assert share_kept((base + alone) / 2, alone, base) == pytest.approx(0.75)


def test_it_re_ranks_the_finalists_as_the_formula_ranks_them(network, entries, monkeypatch):
    shorten(monkeypatch)
    plain = tune(entries, top_n=6)
    found = tune(entries, top_n=6, evaluate=NoiseEvaluator(network.forward))
    truth = {
        one.name: sum(by_hand(network, entries, plain.pick(rank + 1).patches))
        for rank, one in enumerate(plain.ranked[:6])
    }
    assert [one.name for one in found.ranked[:6]] == sorted(truth, key=lambda name: -truth[name])
    assert [one.name for one in found.ranked[:6]] != [one.name for one in plain.ranked[:6]]


def test_a_second_candidate_needs_one_pass_per_lora(network, entries):
    evaluate = NoiseEvaluator(network.forward)
    for passes in (6, 8, 10):
        evaluate(trial_of(entries, Recipe()))
        assert network.passes == passes


def test_an_evaluator_on_top_is_combined_with_it(network, entries):
    seen = []

    def then(trial):
        seen.append(trial.candidate.score)
        return Verdict(0.5, 0.25, {"a": 1})

    trial = trial_of(entries, Recipe())
    alone = NoiseEvaluator(network.forward)(trial)
    both = NoiseEvaluator(network.forward, then)(trial)
    assert seen == [pytest.approx(alone.final - 1)]
    assert (both.external, both.final) == (0.5, 0.25)
    assert both.details == {**alone.details, "evaluator": {"a": 1}}


def test_a_merge_that_ruins_the_model_comes_last_and_a_ruined_model_is_said_so():
    one, two = torch.ones(3), torch.zeros(3)
    assert share_kept(torch.full((3,), float("nan")), one, two) == LEAST
    assert share_kept(torch.full((3,), 1e30), one, two) == LEAST
    with pytest.raises(RecipeError, match="no numbers"):
        share_kept(one, one, torch.full((3,), float("inf")))


def test_a_lora_without_effect_does_not_count(network, entries):
    trial = trial_of(entries, Recipe())
    silent = network.forward((), 1)
    verdict = NoiseEvaluator(lambda patches, entry: network.forward(patches, 0) if entry == 0 else silent)(
        trial
    )
    first, second = verdict.details["func_noise_of_each"]
    assert second is None and verdict.final == pytest.approx(first)
    mute = NoiseEvaluator(lambda patches, entry: silent)(trial)
    assert "No LoRA" in mute.error and mute.final == trial.candidate.score


def test_one_lora_alone_is_at_its_strength(entries):
    stack = stack_of(entries)
    for entry, one in enumerate(entries):
        alone = merge([one], Recipe(method="weighted_sum", auto_strength=False, dtype="float32"))
        found = {name_of(patch): patch.delta.flat() for patch in patches_alone(stack, entry)}
        assert found.keys() == {name_of(patch) for patch in alone}
        for patch in alone:
            torch.testing.assert_close(found[name_of(patch)], patch.delta.flat(), rtol=1e-5, atol=1e-7)
