"""The sweep: plan every candidate, score it, merge the best ones exactly, and keep the first.

Phase 1 merges nothing. A combination is scored exactly from dot products that are measured once; of element-wise work
some rows of some targets are made. Phase 2 merges the best candidates and scores what came out; one of them is held in
memory at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..analysis.measure import measure
from ..analysis.similarity import Measured
from ..core.progress import Progress, silent, told
from ..core.rng import spread
from ..core.threads import one_thread
from ..lora.full import Dense
from ..lora.stack import Stack
from ..merging.elements import blended
from ..merging.engine import execute
from ..merging.holding import held_out
from ..merging.methods import METHODS
from ..merging.patch import Patch
from ..merging.plan import Plan, TargetPlan, make_plan
from ..merging.recipe import Recipe
from .pulls import Pull, pulls_of
from .scores import SCORES, Errors, Sums
from .space import candidates

TARGETS = 48  # that element-wise work is scored on
ROWS = 64


@dataclass(frozen=True)
class Candidate:
    """One recipe of a sweep.

    Attributes:
        name: what differs, in words.
        recipe: all of it.
        plan: what it does to this stack.
        predicted: its score before it is merged.
        errors: what that was made of.
        measured: its score as merged; None where it was not.
        same: names of other candidates with the same plan.
    """

    name: str
    recipe: Recipe
    plan: Plan
    predicted: float
    errors: Errors
    measured: float | None = None
    same: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """What it is ranked by."""
        return self.predicted if self.measured is None else self.measured


@dataclass(frozen=True)
class Tuned:
    """A finished sweep.

    Attributes:
        stack: what was tuned.
        measured: what the plans were made from.
        ranked: all candidates, the best first; those that were merged come before the others.
        patches: of the first.
    """

    stack: Stack
    measured: Sequence[Measured]
    ranked: tuple[Candidate, ...]
    patches: tuple[Patch, ...]


def tuned(
    stack: Stack, recipe: Recipe, *, top_n: int = 3, score: str = "own_foreign", progress: Progress = silent
) -> Tuned:
    """Sweep over the candidates of a recipe.

    Args:
        stack: the stack.
        recipe: what is not tuned.
        top_n: how many candidates are merged; at least 1.
        score: the name of the score.
        progress: told after every target and candidate; what it raises ends the sweep.

    Raises:
        FileError: a file cannot be read.
        RecipeError: the score is unknown.
    """
    judge = SCORES[score]
    stack = held_out(stack, recipe)
    measured = measure(stack, progress=progress)
    pulls = pulls_of(stack, progress)
    sample = _sample(stack)
    found: dict[tuple[TargetPlan, ...] | str, Candidate] = {}
    wanted = candidates(recipe)
    for name, one in told(wanted.items(), len(wanted), "predict", progress):
        plan = make_plan(stack, one, measured)
        key = str(plan.targets)
        if key in found:
            found[key] = replace(found[key], same=(*found[key].same, name))
            continue
        errors = _predicted(stack, plan, pulls, sample)
        found[key] = Candidate(name, one, plan, judge(errors), errors)
    ranked = sorted(found.values(), key=lambda one: -one.predicted)
    merged: list[Candidate] = []
    best: tuple[float, tuple[Patch, ...]] | None = None
    for one in ranked[: max(1, top_n)]:
        patches = tuple(execute(stack, one.plan, progress))
        reached = judge(_reached(stack, pulls, patches, progress))
        merged.append(replace(one, measured=reached))
        if best is None or reached > best[0]:
            best = (reached, patches)
    assert best is not None
    first = sorted(merged, key=lambda one: -one.score)
    return Tuned(stack, measured, (*first, *ranked[max(1, top_n) :]), best[1])


def _sample(stack: Stack) -> list[int]:
    """Places of the targets that element-wise work is scored on: shared ones, spread over the model."""
    shared = [place for place, group in enumerate(stack.groups) if len(group.contributions) > 1]
    return [shared[int(at)] for at in spread(TARGETS, len(shared), "targets")]


def _predicted(stack: Stack, plan: Plan, pulls: Sequence[Pull], sample: Sequence[int]) -> Errors:
    sums = Sums(len(stack.entries))
    has_work = any(target.work is not None for target in plan.targets)
    with torch.no_grad(), one_thread():
        for place, (target, pull) in enumerate(zip(plan.targets, pulls, strict=True)):
            if target.work is None:
                # Where some targets are sampled, the others must not outweigh them.
                if not has_work or place in sample or len(pull.entries) == 1:
                    sums.combination(pull, torch.tensor(target.coefficients, dtype=torch.float64))
            elif place in sample:
                _sampled(stack, place, target, pull, sums)
    stack.release()
    return sums.errors()


def _sampled(stack: Stack, place: int, target: TargetPlan, pull: Pull, sums: Sums) -> None:
    """Some rows of a target, merged and compared; they stand for all of it."""
    group, work = stack.groups[place], target.work
    assert work is not None
    deltas = stack.load(group)
    if len(group.shape) > 1 and group.shape[0] > ROWS:
        rows = spread(ROWS, group.shape[0], str(group.target))
        columns = torch.arange(deltas[0].flat_width)
        some = [Dense(delta.block(rows, columns), 1.0, (len(rows), len(columns))) for delta in deltas]
    else:
        some = [Dense(delta.flat(), 1.0, (delta.flat().shape[0], delta.flat().shape[1])) for delta in deltas]
    blend, _ = blended(
        [some[index] for index in work.places], work, METHODS[target.method], str(group.target)
    )
    merged = blend.flat().clone()
    for index, factor in enumerate(target.coefficients):
        if index not in work.places and factor:
            merged += factor * some[index].matrix
    share = Dense(merged, 1.0, (merged.shape[0], merged.shape[1]))
    sums.rows(pull, share, some, deltas)


def _reached(stack: Stack, pulls: Sequence[Pull], patches: Sequence[Patch], progress: Progress) -> Errors:
    sums = Sums(len(stack.entries))
    pairs = zip(stack.walk(), pulls, patches, strict=True)
    with torch.no_grad(), one_thread():
        for group, pull, patch in told(pairs, len(pulls), "score", progress):
            sums.result(pull, patch.delta, stack.load(group))
    return sums.errors()
