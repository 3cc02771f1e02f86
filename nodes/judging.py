"""Who judges the candidates of a sweep beside our own score: a legacy formula, or a user's evaluator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Any, TypeAlias

from ..autotuner.search import Candidate, Evaluate
from ..autotuner.verdict import Verdict
from ..core.errors import RecipeError
from ..merging.patch import Patch
from .optimizing import Optimized

Hosted: TypeAlias = Callable[[Candidate, Sequence[Patch]], Optimized]
"""MODEL, CLIP and LORA_DATA with a candidate applied, as an evaluator is handed them."""

SMALLEST = 1e-12  # a legacy score of 0 has no logarithm


def judge_of(evaluator: Mapping[str, Any] | None, legacy: str, hosted: Hosted) -> Evaluate | None:
    """Who is asked; None for nobody, so that our own score ranks.

    Args:
        evaluator: AUTOTUNER_EVALUATOR.
        legacy: the formula that ranks in our score's place, `v1` or `v2`; empty for none.
        hosted: makes what an evaluator is handed.

    Raises:
        RecipeError: the evaluator cannot be asked.
    """
    outside = None if evaluator is None else evaluator_of(evaluator, hosted)
    if not legacy:
        return outside

    def judged(candidate: Candidate, patches: Sequence[Patch]) -> Verdict | None:
        assert candidate.seen is not None
        score = candidate.seen.legacy[legacy]
        if outside is None:
            return Verdict(None, score)
        return outside(replace(candidate, measured=log(max(score, SMALLEST))), patches)

    return judged


def evaluator_of(evaluator: Mapping[str, Any], hosted: Hosted) -> Evaluate:
    """An evaluator that a workflow names.

    Raises:
        RecipeError: always, as this version runs no code that a workflow names.
    """
    raise RecipeError(
        f"The evaluator `{evaluator.get('module_path')!s:.200}` is Python code, which this version does not run."
        " Disconnect `evaluator` to tune without it."
    )
