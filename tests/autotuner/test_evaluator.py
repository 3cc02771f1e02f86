"""Users' functions as evaluators: what they are given, what counts of what they return, what goes wrong in them."""

import json
import sys
from contextlib import contextmanager
from math import exp

import pytest
import torch

from lora_alloy import tune
from lora_alloy.autotuner.answers import answer_of
from lora_alloy.autotuner.evaluator import KEYWORDS, Asked, Functions, PythonEvaluator
from lora_alloy.core.errors import RecipeError
from lora_alloy_testing.builders import stack_of, toy_lora
from lora_alloy_testing.sweeps import shorten


@pytest.fixture(autouse=True)
def short(monkeypatch):
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def stack():
    return stack_of(toy_lora(1), toy_lora(2))


@contextmanager
def hosted(trial):
    """What a host hands over; the "model" is the list of the targets that its patches change."""
    yield {
        "model": [patch.target for patch in trial.patches],
        "clip": None,
        "lora_data": None,
        "config": trial.candidate.recipe.to_json(),
        "analysis_summary": {"n_loras": len(trial.stack.entries)},
    }


def evaluator(function, mode="external_only", weight=0.5, context=None, stops=()):
    asked = Asked("judge.py", combine_mode=mode, weight=weight, context=context or {})
    return PythonEvaluator(asked, function, hosted, stops)


def names(found):
    return [one.name for one in found.ranked]


def test_every_merged_candidate_is_shown_whole_and_ranked_by_what_it_got(stack):
    seen = []

    def judge(*, model, clip, lora_data, config, context, analysis_summary):
        seen.append((model, config, context, analysis_summary))
        return {"score": len(seen) / 10, "details": {"place": len(seen)}}

    found = tune(stack, top_n=3, evaluate=evaluator(judge, context={"prompt": "a cat"}))
    assert len(seen) == 3
    assert all(model == [group.target for group in stack.groups] for model, *_ in seen)
    assert seen[0][2:] == ({"prompt": "a cat"}, {"n_loras": 2})
    first = found.ranked[0]
    assert (first.verdict.external, first.verdict.final, first.verdict.details) == (0.3, 0.3, {"place": 3})
    assert first.recipe.to_json() == seen[2][1]
    assert [one.score for one in found.ranked[:3]] == [0.3, 0.2, 0.1]
    assert found.tuned.notes == first.plan.notes


@pytest.mark.parametrize(
    ("mode", "weight", "expected"),
    [
        ("blend", 0.25, lambda own: 0.75 * own + 0.25 * 0.5),
        ("blend", 7.0, lambda own: 0.5),
        ("external_only", 0.25, lambda own: 0.5),
        ("multiply", 0.25, lambda own: 0.5 * own),
    ],
)
def test_a_score_is_combined_with_ours_as_its_mode_says(stack, mode, weight, expected):
    found = tune(stack, top_n=1, evaluate=evaluator(lambda **_: 0.5, mode, weight)).ranked[0]
    assert found.verdict.final == pytest.approx(expected(exp(found.measured)))


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        (0.25, 0.25),
        (7, 1.0),
        (-3.0, 0.0),
        (True, 1.0),
        ("0.5", 0.5),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([0.75]), 0.75),
        ({"score": 2.0}, 1.0),
        (None, None),
        ({"score": None, "details": [1]}, None),
    ],
)
def test_scores_are_clamped_and_none_is_no_score(returned, score):
    answer = answer_of(returned)
    assert answer.score == score
    assert answer.details == (returned.get("details") if isinstance(returned, dict) else None)


@pytest.mark.parametrize(
    "returned", ["good", float("nan"), float("inf"), [0.5], torch.ones(2), {"value": 1}, object(), 10**400]
)
def test_what_is_no_score_is_said_to_be_none(returned):
    answer = answer_of(returned)
    assert answer.score is None and answer.details["error"].startswith("It returned ")


def test_details_that_cannot_be_stored_are_left_out_and_the_score_stays():
    for details in (object(), {"tensor": torch.ones(1)}, [float("nan")], {(1, 2): 3}):
        answer = answer_of({"score": 0.5, "details": details})
        assert answer.score == 0.5 and "no JSON values" in answer.details["error"]
    loop = []
    loop.append(loop)
    assert answer_of({"score": 0.5, "details": loop}).score == 0.5
    assert answer_of({"score": 0.5, "details": (1, 2)}).details == [1, 2]


def test_an_exception_costs_one_candidate_its_score_and_ends_nothing(stack):
    calls = []

    def judge(**_):
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no picture")
        if len(calls) == 2:
            sys.exit("enough")
        return 0.9

    found = tune(stack, top_n=3, evaluate=evaluator(judge))
    assert len(calls) == 3
    failed = [one for one in found.ranked[:3] if one.verdict.external is None]
    assert [one.verdict.final for one in failed] == [pytest.approx(exp(one.measured)) for one in failed]
    errors = sorted(one.verdict.error for one in failed)
    assert errors[0].startswith("SystemExit: enough") and errors[1].startswith(
        "ValueError: no picture (test_"
    )
    assert any("no score for 2 of 3 candidates" in note for note in found.tuned.notes)


def test_cancelling_inside_an_evaluator_ends_the_sweep(stack):
    class InterruptedByUserError(Exception):
        pass

    def judge(**_):
        raise InterruptedByUserError

    with pytest.raises(InterruptedByUserError):
        tune(stack, top_n=2, evaluate=evaluator(judge, stops=(InterruptedByUserError,)))

    def ctrl_c(**_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(stack, top_n=2, evaluate=evaluator(ctrl_c))


def test_a_function_cannot_change_what_the_next_candidate_is_told(stack):
    seen = []

    def judge(*, config, context, analysis_summary, **_):
        seen.append((dict(config), json.dumps([context, analysis_summary])))
        config.clear()
        context["seen"] = analysis_summary["n_loras"] = 99
        return 0.5

    found = tune(stack, top_n=2, evaluate=evaluator(judge, context={"a": [1]}))
    assert seen[0][1] == seen[1][1] and all(config for config, _ in seen)
    assert found.ranked[0].recipe.to_json()


def written(folder, text, name="judge.py"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_file_is_run_once_and_keeps_its_state_until_it_changes(tmp_path):
    text = "count = 0\ndef evaluate_candidate(**_):\n    global count\n    count += 1\n    return count\n"
    path, functions = written(tmp_path, text), Functions()
    assert functions.get(path, "evaluate_candidate")() == 1
    assert functions.get(path, "evaluate_candidate")() == 2
    # Changed within the same second, and of the same size.
    written(tmp_path, text.replace("count = 0", "count = 7"))
    assert functions.get(path, "evaluate_candidate")() == 8
    assert Functions().get(path, "evaluate_candidate")() == 8
    assert not (tmp_path / "__pycache__").exists()


def test_a_file_may_have_dataclasses_and_any_encoding(tmp_path):
    text = (
        "# -*- coding: latin-1 -*-\nfrom __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Seen:\n    name: str = 'é'\n"
        "def judge(**_):\n    return {'details': Seen().name, 'score': 1}\n"
    )
    path = tmp_path / "judge.py"
    path.write_bytes(text.encode("latin-1"))
    assert Functions().get(str(path), "judge")()["details"] == "é"


def test_an_importable_module_is_one_too(tmp_path, monkeypatch):
    written(tmp_path, "def judge(**_):\n    return 0.5\n", "alloy_test_judge.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Functions().get("alloy_test_judge", "judge")() == 0.5
    sys.modules.pop("alloy_test_judge")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "has no function `evaluate_candidate`"),
        ("evaluate_candidate = 3", "has no function `evaluate_candidate`"),
        ("def evaluate_candidate(model):\n    pass", f"must take the keywords {', '.join(KEYWORDS)}"),
        ("def evaluate_candidate(:", "cannot be loaded: SyntaxError"),
        ("import no_such_module_here", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_evaluator_is_refused_before_any_work(tmp_path, text, said):
    before = set(sys.modules)
    with pytest.raises(RecipeError, match="judge.py") as refused:
        Functions().get(written(tmp_path, text), "evaluate_candidate")
    assert said in str(refused.value)
    if "SyntaxError" in said or "raise" in text:
        assert not {name for name in set(sys.modules) - before if "evaluator" in name}


@pytest.mark.parametrize(
    "name", ["/no/such/judge.py", "no_such_module.judge", "torch.no_such_part", "a b", "\0"]
)
def test_an_evaluator_that_is_not_there_is_said_so(name):
    with pytest.raises(RecipeError, match="There is no evaluator"):
        Functions().get(name, "evaluate_candidate")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "is none"),
        ({}, "names no Python file"),
        ({"module_path": "  "}, "names no Python file"),
        ({"module_path": 3}, "names no Python file"),
        ({"module_path": "a", "callable_name": ""}, "names no function"),
        ({"module_path": "a", "combine_mode": "sum"}, "known: blend, external_only, multiply"),
        ({"module_path": "a", "combine_mode": []}, "known: blend"),
        ({"module_path": "a", "weight": float("nan")}, "a number from 0 to 1"),
        ({"module_path": "a", "weight": "much"}, "a number from 0 to 1"),
    ],
)
def test_a_mapping_that_is_no_evaluator_is_refused(given, said):
    with pytest.raises(RecipeError, match=said):
        Asked.of(given)


def test_the_mapping_of_a_node_is_read_with_its_spaces():
    asked = Asked.of({"module_path": " a.py ", "callable_name": " f ", "combine_mode": "multiply", "weight": 1,
                      "context": {"x": 1}, "later": True})  # fmt: skip
    assert asked == Asked("a.py", "f", "multiply", 1, {"x": 1})
