"""Who judges the candidates of a sweep beside our own score: a legacy formula, or a user's evaluator."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from math import log
from typing import Any, TypeAlias

from ..autotuner.config import config_of
from ..autotuner.evaluator import Asked, PythonEvaluator
from ..autotuner.permission import require_allowed
from ..autotuner.search import Evaluate, Trial
from ..autotuner.verdict import Verdict
from . import bridge, session
from .optimizing import Optimized

Hosted: TypeAlias = Callable[[Trial], Optimized]
"""MODEL, CLIP and LORA_DATA with a candidate applied, as an evaluator is handed them."""

SMALLEST = 1e-12  # a legacy score of 0 has no logarithm


def judge_of(evaluator: Mapping[str, Any] | None, legacy: str, hosted: Hosted) -> Evaluate | None:
    """Who is asked; None for nobody, so that our own score ranks.

    Args:
        evaluator: AUTOTUNER_EVALUATOR.
        legacy: the formula that ranks in our score's place, `v1` or `v2`; empty for none.
        hosted: makes what an evaluator is handed.

    Raises:
        RecipeError: the evaluator cannot be loaded, or the machine's owner has not allowed it.
    """
    outside = None if evaluator is None else evaluator_of(evaluator, hosted)
    if not legacy:
        return outside

    def judged(trial: Trial) -> Verdict | Future[Verdict]:
        assert trial.candidate.seen is not None
        score = trial.candidate.seen.legacy[legacy]
        if outside is None:
            return Verdict(None, score)
        return outside(replace(trial, candidate=replace(trial.candidate, measured=log(max(score, SMALLEST)))))

    return judged


def evaluator_of(evaluator: Mapping[str, Any], hosted: Hosted) -> Evaluate:
    """An evaluator that a workflow names, if the machine's owner has allowed it.

    Raises:
        RecipeError: he has not, or it cannot be loaded.
    """
    asked = Asked.of(evaluator)
    require_allowed(asked.module_path)
    function = session.functions().get(asked.module_path, asked.callable_name)

    @contextmanager
    def arguments(trial: Trial) -> Iterator[Mapping[str, Any]]:
        seen, done = trial.candidate.seen, hosted(trial)
        yield {
            "model": done.model,
            "clip": done.clip,
            "lora_data": done.lora_data,
            "config": config_of(trial.candidate.recipe),
            "analysis_summary": seen.summary.to_json() if seen else {},
        }

    return PythonEvaluator(asked, function, arguments, bridge.interruptions())
