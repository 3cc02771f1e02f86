"""The Python API of the AutoTuner: find the recipe that keeps most of every LoRA of a stack."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .analysis.measure import measure
from .analysis.similarity import Measured
from .api import Merged, StackLike, resolved
from .autotuner.looking import Look
from .autotuner.remembered import ranking_from_json, ranking_to_json
from .autotuner.search import Candidate, Evaluate, Tuned, tuned
from .cache.diffs import DiffCache
from .cache.store import Store
from .core.device import usable
from .core.errors import RecipeError
from .core.progress import Progress, silent
from .lora.stack import Model, Stack
from .memory.memory import Memory
from .merging.engine import ask_room, execute
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
    make_room: Callable[[int], object] | None = None,
    memory: Store | None = None,
    diff_cache: DiffCache | None = None,
) -> Tuning:
    """Try every way of merging a stack, merge the most promising ones, and keep the best.

    Args:
        stack: the entries.
        recipe: what is not tuned: rank, dtype, filters, formula …; the method and its settings are tuned.
        model: the base model, as `open_base` or a host knows it.
        top_n: how many candidates are merged; at least 1.
        score: what candidates are ranked by, one of `autotuner.scores.SCORES`.
        evaluate: asked for every candidate that is merged; what it says is not remembered.
        look: looks at every candidate that is merged; what it saw is not remembered.
        progress: told after every target and candidate; what it raises ends the sweep, and nothing is kept.
        device: where element-wise work is done.
        make_room: asked to free so many bytes of the device before it is used.
        memory: where rankings and results are remembered, and found again.
        diff_cache: keeps what element-wise work multiplies out, from one candidate to the next.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
        RecipeError: the score is unknown, or `top_n` is less than 1.
    """
    asked, remembered = recipe or Recipe(), Memory(memory)
    device = usable(device)
    built, told = resolved(stack, asked, model, {}, progress, device, remembered)
    settings = {"top_n": top_n, "score": score, "order": [entry.file.sha256 for entry in built.entries]}
    is_plain = evaluate is None and look is None
    keys = remembered.tuning_keys(built, asked, settings, device) if is_plain else None
    recalled = _recalled(remembered, keys, built, score, told, progress, device)
    if recalled is not None:
        return recalled
    found = tuned(
        built,
        asked,
        make_room=make_room,
        top_n=top_n,
        score=score,
        evaluate=evaluate,
        look=look,
        progress=progress,
        device=device,
        measured=remembered.measure(built, asked, progress=progress),
        remember=diff_cache,
    )
    done = Tuning(found, told)
    remembered.keep_tuning(keys, ranking_to_json(found))
    key = remembered.key(built, found.best.recipe, device)
    remembered.keep(key, built, done.best.plan, found.measured, found.patches)
    return done


def _recalled(
    memory: Memory,
    keys: tuple[dict[str, Any], dict[str, Any]] | None,
    stack: Stack,
    score: str,
    told: dict[str, Any],
    progress: Progress,
    device: torch.device,
) -> Tuning | None:
    """A sweep that was remembered, its best merge with it or made again."""
    value = memory.recall_tuning(keys)
    if value is None:
        return None
    try:
        ranked, tried, notes = ranking_from_json(value, len(stack.entries))
    except (KeyError, ValueError, RecipeError):
        return None  # of a kind that this program does not write
    best = ranked[0]
    key = memory.key(stack, best.recipe, device)
    kept = memory.recall(key, stack, progress)
    if kept is None or kept.patches is None:
        measured = memory.measure(stack, best.recipe, progress=progress)
        plan = _planned(stack, best.recipe, measured, told, progress)
        patches = tuple(execute(stack, plan, progress, device))
        memory.keep(key, stack, plan, measured, patches)
    else:
        plan, measured, patches = kept.plan, kept.measured, kept.patches
    ranking = (replace(best, plan=plan), *ranked[1:])
    found = Tuned(stack, measured, score, ranking, patches, tried, notes=notes, is_recalled=True)
    return Tuning(found, told)


def replay(
    stack: StackLike,
    recipe: Recipe,
    asked: Recipe,
    *,
    model: Model | None = None,
    progress: Progress = silent,
    device: torch.device | str = "cpu",
    make_room: Callable[[int], object] | None = None,
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
        make_room: asked to free so many bytes of the device before it is used.
        is_lazy: let results of full rank go again.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
    """
    built, told = resolved(stack, asked, model, {}, progress, device, Memory(None))
    measured = measure(built, progress=progress)
    plan = _planned(built, recipe, measured, told, progress)
    ask_room(make_room, torch.device(device), [plan])
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
