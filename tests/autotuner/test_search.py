"""The sweep: what is tried, what is merged, what comes first, and what is left of it when somebody stops it."""

from dataclasses import replace

import pytest
import torch

from lora_alloy import Recipe, merge, tune
from lora_alloy.autotuner.search import tuned
from lora_alloy.autotuner.space import candidates
from lora_alloy.autotuner.verdict import Verdict, combined
from lora_alloy.core.errors import RecipeError
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.tuning import replay
from lora_alloy_testing.builders import file_of, toy_lora

FULL = Recipe(dtype="float32", rank=6)


def entries(count: int = 3) -> list[Entry]:
    return [
        Entry(file_of(toy_lora(seed, rank=2 + seed), f"lora {seed}"), 1.0 - 0.2 * seed)
        for seed in range(count)
    ]


def same_bytes(patches, others) -> bool:
    return [one.target for one in patches] == [one.target for one in others] and all(
        a.equal(b)
        for one, other in zip(patches, others, strict=True)
        for a, b in zip(one.delta.tensors.values(), other.delta.tensors.values(), strict=True)
    )


def test_candidates_differ_from_the_recipe_in_what_is_tuned_only():
    asked = Recipe(rank=7, dtype="bfloat16", seed=5, star_eta=80.0, compress="aggressive", partial=True)
    tuned_fields = {
        *("method", "density", "sparsify", "dampening", "enhance", "auto_strength", "global_scale", "scope"),
        "strategy_set",
    }
    for recipe in candidates(asked).values():
        for name, value in asked.to_json().items():
            assert name in tuned_fields or recipe.to_json()[name] == value


def test_the_best_is_first_and_its_patches_are_those_of_its_recipe():
    found = tune(entries(), FULL, top_n=4)
    merged = found.tuned.merged
    assert len(merged) == 4
    scores = [one.measured for one in merged]
    assert scores == sorted(scores, reverse=True)
    rest = [one.predicted for one in found.ranked[4:]]
    assert rest == sorted(rest, reverse=True)
    assert found.tuned.tried == len(candidates(FULL)) > len(found.ranked)
    assert sum(1 + len(one.same) for one in found.ranked) == found.tuned.tried
    again = merge(entries(), found.ranked[0].recipe)
    assert again.plan == found.best.plan
    assert same_bytes(again.patches, found.best.patches)


def test_every_rank_replays_bit_for_bit():
    found = tune(entries(), FULL, top_n=3)
    for rank in (1, 2, 3):
        picked = found.pick(rank)
        by_recipe = merge(entries(), found.ranked[rank - 1].recipe)
        assert same_bytes(picked.patches, by_recipe.patches)
        assert picked.plan == by_recipe.plan
    lower = found.pick(9)
    assert same_bytes(lower.patches, merge(entries(), found.ranked[8].recipe).patches)
    with pytest.raises(RecipeError, match="no rank 0"):
        found.pick(0)


def test_what_is_measured_is_what_was_predicted_of_combinations():
    found = tune(entries(), replace(FULL, rank=0), top_n=30)
    exact = [one for one in found.tuned.merged if one.spread == 0.0]
    assert len(exact) > 5
    for one in exact:
        assert one.measured == pytest.approx(one.predicted, abs=1e-5), one.name


def test_one_lora_alone_is_kept_whole():
    found = tune(entries(1), top_n=2)
    assert found.tuned.best.measured == pytest.approx(0.0, abs=1e-3)
    assert same_bytes(found.best.patches, merge(entries(1)).patches)


def test_a_formula_is_tuned_over_its_outer_merge():
    asked = replace(FULL, formula="(1+2):0.6 + 3:0.4", method="slerp")
    found = tune(entries(), asked, top_n=2)
    assert set(found.best.plan.inner) == {"(1+2)"}
    assert len(found.best.plan.leaves) == 3
    for rank in (1, 2, 7):
        again = replay(entries(), found.ranked[rank - 1].recipe, asked)
        assert same_bytes(found.pick(rank).patches, again.patches)
        assert same_bytes(found.pick(rank).patches, merge(entries(), found.pick(rank).plan).patches)


def test_nobody_asks_for_less_than_one():
    with pytest.raises(RecipeError, match="at least 1"):
        tune(entries(), top_n=0)
    with pytest.raises(RecipeError, match="own_foreign"):
        tune(entries(), score="own_foriegn")


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("phase", ["analyse", "compare", "predict", "merge", "score"])
def test_a_sweep_stops_in_every_phase(phase):
    told = []

    def progress(what, done, total):
        told.append(what)
        if what == phase:
            raise StoppedError

    with pytest.raises(StoppedError):
        tuned(build_stack(entries()), FULL, progress=progress)
    assert told.count(phase) == 1


def test_an_evaluator_decides():
    names = []

    def evaluate(trial):
        candidate = trial.candidate
        assert trial.patches and candidate.plan is not None
        names.append(candidate.name)
        external = 0.9 if len(names) == 3 else 0.1
        return Verdict(external, combined(candidate.measured, external, "external_only", 1.0))

    found = tune(entries(), FULL, top_n=4, evaluate=evaluate)
    assert len(names) == 4
    assert found.ranked[0].name == names[2]
    assert same_bytes(found.best.patches, merge(entries(), found.ranked[0].recipe).patches)


@pytest.mark.parametrize(
    ("own", "external", "mode", "weight", "expected"),
    [
        (0.0, 0.25, "blend", 0.5, 0.625),
        (0.0, 7.0, "blend", 0.5, 1.0),
        (0.0, -7.0, "blend", 0.5, 0.5),
        (0.0, 0.25, "blend", 7.0, 0.25),
        (-0.5, 0.25, "external_only", 0.5, 0.25),
        (-0.6931471805599453, 0.5, "multiply", 0.5, 0.25),
        (-0.6931471805599453, None, "external_only", 0.5, 0.5),
        (0.0, float("nan"), "multiply", 0.5, 1.0),
    ],
)
def test_scores_are_combined_by_hand(own, external, mode, weight, expected):
    assert combined(own, external, mode, weight) == pytest.approx(expected)


def test_only_the_best_and_the_present_candidate_are_held(monkeypatch):
    import gc
    import weakref

    from lora_alloy.autotuner import search

    alive: list[weakref.ref] = []
    most = 0
    real = search.reached

    def watched(stack, pulls, plan, patches, progress):
        nonlocal most
        alive.append(weakref.ref(patches[0]))
        gc.collect()
        most = max(most, sum(one() is not None for one in alive))
        return real(stack, pulls, plan, patches, progress)

    monkeypatch.setattr(search, "reached", watched)
    tuned(build_stack(entries()), FULL, top_n=8)
    assert len(alive) == 8 and most == 2


def test_half_precision_files_are_scored_like_any(tmp_path):
    given = [Entry(file_of(toy_lora(seed, dtype=torch.float16), f"lora {seed}")) for seed in range(2)]
    found = tune(given, top_n=2)
    assert -1.0 < found.tuned.best.measured < 0.0
