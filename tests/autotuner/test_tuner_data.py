"""TUNER_DATA: what is written, what is read, and that it gives the same recipe back."""

import hashlib
import json
from math import exp
from typing import Any

import pytest

from lora_alloy import Recipe, tune
from lora_alloy.autotuner.config import config_of, recipe_of_config
from lora_alloy.autotuner.legacy_scores import FORMULAS
from lora_alloy.autotuner.looking import Look
from lora_alloy.autotuner.space import candidates
from lora_alloy.autotuner.tuner_data import (
    config_of_rank,
    is_exact,
    lora_hash,
    recipe_of_candidate,
    score_of,
    tuner_data,
)
from lora_alloy.autotuner.tuner_file import read_tuner_file, write_tuner_file
from lora_alloy.autotuner.tuner_report import candidate_lines, ranking_lines
from lora_alloy.core.errors import AlloyError, FileError, RecipeError, SaveError
from lora_alloy.lora.stack import Entry
from lora_alloy_testing.builders import file_of, toy_lora
from lora_alloy_testing.fake_host import few_candidates

CONFIG = {
    "merge_mode": "ties",
    "sparsification": "dare",
    "sparsification_density": 0.5,
    "dare_dampening": 0.3,
    "merge_refinement": "full",
    "auto_strength": "disabled",
    "optimization_mode": "global",
    "strategy_set": "full",
}
KEYS = {
    *("version", "lora_hash", "source_loras", "normalize_keys", "architecture_preset", "auto_strength_floor"),
    *("decision_smoothing", "analysis_summary", "top_n"),
}
CANDIDATE_KEYS = {
    *("rank", "score_heuristic", "score_measured", "score_external", "score_final", "config", "metrics"),
    "external_details",
}
SUMMARY_KEYS = {
    *("n_loras", "prefix_count", "avg_conflict_ratio", "avg_excess_conflict", "avg_subspace_overlap"),
    *("avg_cosine_sim", "magnitude_ratio", "decision_smoothing"),
}


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    few_candidates(monkeypatch)
    stack = [Entry(file_of(toy_lora(seed, rank=2 + seed), f"lora {seed}"), 0.8) for seed in range(3)]
    return tune(stack, Recipe(smoothing=0.5, rank=6), top_n=5, look=Look())


def test_the_hash_is_that_of_the_names_and_strengths_in_stack_order():
    text = '[["a.safetensors", 1.0], ["b.safetensors", 0.5]]'
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert lora_hash([("a.safetensors", 1), ("b.safetensors", 0.5)]) == expected
    assert lora_hash([("a.safetensors", 1.0), ("c", 0.0), ("b.safetensors", 0.5)]) == expected
    assert lora_hash([("b.safetensors", 0.5), ("a.safetensors", 1.0)]) != expected
    assert lora_hash([("é", 1.0)]) == hashlib.sha256(b'[["\\u00e9", 1.0]]').hexdigest()[:16]


def test_every_key_that_readers_know_is_there_and_all_of_it_is_json(found):
    data = tuner_data(
        found.tuned, Recipe(smoothing=0.5, rank=6), sources=[("x", 0.8), ("y", 0.8), ("z", 0.8)]
    )
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert KEYS <= set(data) and set(data["analysis_summary"]) == SUMMARY_KEYS
    assert data["version"] == 1 and data["source_loras"][1] == {"name": "y", "strength": 0.8}
    assert data["lora_hash"] == lora_hash([("x", 0.8), ("y", 0.8), ("z", 0.8)])
    assert (data["architecture_preset"], data["auto_strength_floor"]) == ("auto", -1.0)
    assert data["decision_smoothing"] == 0.5
    for rank, (told, one) in enumerate(zip(data["top_n"], found.tuned.merged, strict=True), 1):
        assert CANDIDATE_KEYS <= set(told) and set(told["config"]) == set(CONFIG)
        assert told["rank"] == rank and told["score_final"] == pytest.approx(exp(one.measured))
        assert told["score_heuristic"] == pytest.approx(exp(one.predicted))
        assert told["score_external"] is None and told["external_details"] is None
        assert Recipe.from_json(told["recipe"]) == one.recipe and told["name"] == one.name
        assert [left["name"] for left in told["retention"]] == ["lora 0", "lora 1", "lora 2"]
        assert set(told["legacy_scores"]) == set(FORMULAS)
        assert {"norm_preservation", "effective_rank_mean", "sparsity_mean", "norm_cv"} <= set(
            told["metrics"]
        )
    scores = [one["score_final"] for one in data["top_n"]]
    assert scores == sorted(scores, reverse=True)


def test_a_candidate_gives_its_own_recipe_back_after_any_journey_through_json(found, tmp_path):
    asked = Recipe(smoothing=0.5, rank=6)
    path = tmp_path / "sub" / "x.tuner"
    write_tuner_file(path, tuner_data(found.tuned, asked), {"prompt": " p ", "description": " "})
    assert path.read_text().startswith('{\n  "version": 1,\n')
    data = read_tuner_file(path)
    assert data["prompt"] == "p" and "description" not in data
    for rank, one in enumerate(found.tuned.merged, 1):
        assert recipe_of_candidate(data, rank) == (one.recipe, asked) and is_exact(data, rank)


def test_a_recipe_that_cannot_be_read_gives_way_to_the_configuration():
    data = {"decision_smoothing": 0.5, "top_n": [{"config": CONFIG}]}
    expected = Recipe(
        method="ties",
        scope="global",
        sparsify="dare",
        density=0.5,
        dampening=0.3,
        enhance="full",
        auto_strength=False,
        smoothing=0.5,
    )
    assert recipe_of_candidate(data) == (expected, expected) and not is_exact(data)
    for broken in (3, {"method": "magic"}, {"version": 9}, {"rank": "many"}, {"later": 1}):
        data["top_n"][0]["recipe"] = broken
        assert recipe_of_candidate(data)[0] == expected


def test_a_configuration_says_of_every_candidate_what_its_words_can():
    known = {"per_prefix_auto", "weighted_average", "slerp", "consensus", "ties", "weighted_sum"}
    for name, recipe in candidates(Recipe()).items():
        config = config_of(recipe)
        assert config["merge_mode"] in known, name
        again = recipe_of_config(config)
        assert again.sparsifier == ("" if recipe.sparsifier == "trim" else recipe.sparsifier), name
        assert (again.auto_strength, again.enhance) == (recipe.auto_strength, recipe.enhance), name
        if recipe.method in (*known, "auto"):
            assert again.method == recipe.method, name
            if recipe.method == "auto":
                assert (again.scope, again.strategy_set) == (recipe.scope, recipe.strategy_set), name


@pytest.mark.parametrize(
    "data", [None, 3, [], {}, {"top_n": 3}, {"top_n": [1]}, {"top_n": [{"config": []}]}], ids=str
)
def test_what_is_no_tuning_result_is_refused_in_a_sentence(data):
    with pytest.raises(RecipeError):
        config_of_rank(data)


def test_what_is_asked_for_must_be_there():
    with pytest.raises(RecipeError, match="no rank 2; choose one of its 1"):
        recipe_of_candidate({"top_n": [{"config": CONFIG}]}, 2)
    for wrong in (
        {"merge_mode": "magic"},
        {"sparsification": 3},
        {"dare_dampening": "much"},
        {"sparsification_density": 7},
    ):
        with pytest.raises(AlloyError):
            recipe_of_candidate({"top_n": [{"config": CONFIG | wrong}]})


def test_a_score_is_the_first_that_can_be_read():
    assert score_of({"score_final": None, "score_measured": 0.5, "score_heuristic": 0.9}) == 0.5
    assert score_of({"score_final": "high", "score_heuristic": 1}) == 1.0
    assert score_of({"score_final": float("nan"), "score_measured": True}) is None


def test_the_report_names_every_candidate_and_marks_the_one_that_is_applied(found):
    data = tuner_data(found.tuned, Recipe())
    lines = ranking_lines(data, 2)
    assert [line[:4] for line in lines if line[1:].strip()[:2] in ("1.", "2.", "3.", "4.", "5.")] == [
        *("  1.", "> 2.", "  3.", "  4.", "  5.")
    ]
    assert "3 LoRAs" in lines[1] and any("left: lora 0 " in line for line in lines)


@pytest.mark.parametrize(
    "one",
    [
        3,
        {},
        {"config": 3, "metrics": 4, "retention": 5, "score_final": "x", "name": None},
        {"metrics": {"sparsity_mean": "much"}, "retention": [1, {"left": "all"}], "external_details": [1]},
        {"config": {"merge_mode": ["a"], "strategy_set": {}}, "score_external": "x"},
    ],
    ids=str,
)
def test_a_report_of_somebody_elses_result_says_what_can_be_said(one):
    assert candidate_lines(one, 1)
    assert ranking_lines({"top_n": [one], "analysis_summary": {"n_loras": "two"}, "tried": "many"})


def test_a_file_that_is_no_tuning_result_is_refused_by_name(tmp_path):
    for text, says in (("{", "not JSON"), ("[]", "no candidates"), ('{"top_n": []}', "no candidates")):
        path = tmp_path / "x.tuner"
        path.write_text(text)
        with pytest.raises(FileError, match=says):
            read_tuner_file(path)
    with pytest.raises(FileError, match="cannot be read"):
        read_tuner_file(tmp_path / "gone.tuner")
    with pytest.raises(SaveError, match="cannot be saved"):
        write_tuner_file(tmp_path / "y.tuner", {"a": {1, 2}})
    with pytest.raises(SaveError, match="cannot be saved"):
        write_tuner_file(tmp_path / "y.tuner", {"a": float("nan")})
    assert not (tmp_path / "y.tuner").exists()
