"""The Python API of the AutoTuner: find the recipe that keeps most of every LoRA of a stack."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from .analysis.measure import measure
from .analysis.similarity import Measured
from .api import Merged, StackLike, resolved
from .autotuner.looking import Look
from .autotuner.search import Candidate, Evaluate, Tuned, tuned
from .core.errors import RecipeError
from .core.progress import Progress, silent
from .lora.stack import Model, Stack
from .merging.engine import execute
from .merging.plan import Plan, make_plan
from .merging.recipe import Recipe


class Tuning:
    """A finished sweep: its candidates, the best one merged, and any other merged when it is asked for.

    Attributes:
        tuned: the sweep.
        best: the first candidate, merged; it reports on itself and is saved as any merge.
    """

    def __init__(self, found: Tuned, told: dict[str, Any]) -> None:
        self._told = told
        self.tuned = _completed(found, told)
        first = self.tuned.best.plan
        assert first is not None
        self.best = Merged(found.stack, first, found.measured, found.patches)

    @property
    def ranked(self) -> Sequence[Candidate]:
        """All candidates, the best first; those that were merged come before the others."""
        return self.tuned.ranked

    def pick(
        self,
        rank: int = 1,
        *,
        progress: Progress = silent,
        device: torch.device | str = "cpu",
        is_lazy: bool = False,
    ) -> Merged:
        """The candidate of a rank, merged; of one that the sweep has merged, bit for bit what it was judged by.

        Args:
            rank: 1 for the best.
            progress: told after every target.
            device: where element-wise work is done.
            is_lazy: let results of full rank go again.

        Raises:
            RecipeError: there is no such rank.
        """
        if not 1 <= rank <= len(self.ranked):
            raise RecipeError(f"There is no rank {rank}; the sweep has {len(self.ranked)} candidates.")
        chosen = self.ranked[rank - 1]
        if rank == 1 and not is_lazy:
            return self.best
        if chosen.plan is not None:
            plan = chosen.plan
        else:
            plan = _planned(self.tuned.stack, chosen.recipe, self.tuned.measured, self._told, progress)
        return _executed(self.tuned.stack, plan, self.tuned.measured, progress, device, is_lazy)


def tune(
    stack: StackLike,
    recipe: Recipe | None = None,
    *,
    model: Model | None = None,
    top_n: int = 3,
    score: str = "own_foreign",
    evaluate: Evaluate | None = None,
    look: Look | None = None,
    progress: Progress = silent,
    device: torch.device | str = "cpu",
) -> Tuning:
    """Try every way of merging a stack, merge the most promising ones, and keep the best.

    Args:
        stack: the entries.
        recipe: what is not tuned: rank, dtype, filters, formula …; the method and its settings are tuned.
        model: the base model, as `open_base` or a host knows it.
        top_n: how many candidates are merged; at least 1.
        score: what candidates are ranked by, one of `autotuner.scores.SCORES`.
        evaluate: asked for every candidate that is merged.
        look: looks at every candidate that is merged, for a tuning result that is kept.
        progress: told after every target and candidate; what it raises ends the sweep, and nothing is kept.
        device: where element-wise work is done.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
        RecipeError: the score is unknown, or `top_n` is less than 1.
    """
    asked = recipe or Recipe()
    built, told = resolved(stack, asked, model, {}, progress, device)
    found = tuned(
        built,
        asked,
        top_n=top_n,
        score=score,
        evaluate=evaluate,
        look=look,
        progress=progress,
        device=device,
    )
    return Tuning(found, told)


def replay(
    stack: StackLike,
    recipe: Recipe,
    asked: Recipe,
    *,
    model: Model | None = None,
    progress: Progress = silent,
    device: torch.device | str = "cpu",
    is_lazy: bool = False,
) -> Merged:
    """Merge by a candidate of an earlier sweep, bit for bit what that sweep made of it.

    Without a formula it is `merge(stack, recipe)`. A formula's inner merges follow the recipe that was tuned, and only
    the outer one the candidate's.

    Args:
        stack: the entries.
        recipe: the candidate's.
        asked: the one that was tuned.
        model: as in `tune`.
        progress: told after every target.
        device: where element-wise work is done.
        is_lazy: let results of full rank go again.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
    """
    built, told = resolved(stack, asked, model, {}, progress, device)
    measured = measure(built, progress=progress)
    plan = _planned(built, recipe, measured, told, progress)
    return _executed(built, plan, measured, progress, device, is_lazy)


def _planned(
    stack: Stack, recipe: Recipe, measured: Sequence[Measured], told: dict[str, Any], progress: Progress
) -> Plan:
    return replace(make_plan(stack, recipe, measured, progress), **told)


def _executed(
    stack: Stack,
    plan: Plan,
    measured: Sequence[Measured],
    progress: Progress,
    device: torch.device | str,
    is_lazy: bool,
) -> Merged:
    patches = tuple(execute(stack, plan, progress, device, is_lazy=is_lazy))
    return Merged(stack, plan, measured, patches)


def _completed(found: Tuned, told: dict[str, Any]) -> Tuned:
    """The sweep with what the plans say of a formula."""
    ranked = (replace(one, plan=one.plan and replace(one.plan, **told)) for one in found.ranked)
    return replace(found, ranked=tuple(ranked))
