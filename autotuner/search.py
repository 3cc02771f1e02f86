"""The sweep: score every candidate, the best ones exactly, and keep the first.

Phase 1 merges nothing (`predict.py`). Phase 2 plans the best candidates in full and scores them: a combination exactly
from dot products, all else by merging it; one of those is held in memory at a time, and the best.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from time import perf_counter, process_time
from typing import Any, TypeAlias

import torch

from ..analysis.measure import measure
from ..analysis.similarity import Measured
from ..core.errors import RecipeError
from ..core.progress import Progress, silent, told
from ..lora.stack import Stack
from ..merging.engine import ask_room, execute
from ..merging.patch import Patch
from ..merging.plan import Plan, make_plan
from ..merging.recipe import Recipe
from .looking import Look, Seen
from .predict import FEW, Prediction, Predictor
from .pulls import pulls_of
from .reached import combined_errors, is_exact, reached
from .scores import SCORES, Errors
from .space import candidates
from .verdict import Verdict
from .waiting import abandoned, settled

MARGIN = 0.05  # of a score: what a first look at a few targets may be wrong by


@dataclass(frozen=True)
class Candidate:
    """One recipe of a sweep.

    Attributes:
        name: what is special about it, in words.
        recipe: all of it.
        predicted: its score before it is merged.
        spread: the standard error of that; 0 of one that is exact, or whose sample is all there is.
        errors: what it was scored by: of the merge, or predicted.
        is_sampled: whether it was predicted from a sample.
        plan: what it does to this stack; None where it was not merged, or is remembered.
        measured: its score as merged; None where it was not.
        verdict: what an evaluator said; None where none was asked.
        seen: what was looked at in it while its patches were there; None where nothing was.
        seconds: that its merge took.
        same: names of other candidates that do the same.
    """

    name: str
    recipe: Recipe
    predicted: float
    spread: float
    errors: Errors
    is_sampled: bool = False
    plan: Plan | None = None
    measured: float | None = None
    verdict: Verdict | None = None
    seen: Seen | None = None
    seconds: float = 0.0
    same: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """What it is ranked by."""
        own = self.predicted if self.measured is None else self.measured
        return own if self.verdict is None else self.verdict.final


@dataclass(frozen=True)
class Trial:
    """A merged candidate, as an evaluator sees it.

    Attributes:
        stack: what was merged.
        measured: what its plan was made from.
        candidate: its plan, its errors and its own score.
        patches: one a target.
        progress: told while somebody waits; what it raises ends the sweep.
    """

    stack: Stack
    measured: Sequence[Measured]
    candidate: Candidate
    patches: tuple[Patch, ...]
    progress: Progress = silent


Evaluate: TypeAlias = Callable[[Trial], Verdict | Future[Verdict]]
"""What somebody else thinks of a candidate: a user's code, images, a forward pass.

Whoever needs long returns a future, and has taken what he needs of the patches by then.
"""


@dataclass(frozen=True)
class Tuned:
    """A finished sweep.

    Attributes:
        stack: what was tuned.
        measured: what the plans were made from.
        score: the name of the score.
        ranked: all candidates, the best first; those that were merged come before the others.
        patches: of the first.
        tried: how many recipes there were; those that do the same are one candidate.
        seconds: of each phase, by its name.
        cpu_seconds: alike, of the process.
        notes: what the user should know.
        is_recalled: whether the ranking was remembered from an earlier run.
    """

    stack: Stack
    measured: Sequence[Measured]
    score: str
    ranked: tuple[Candidate, ...]
    patches: tuple[Patch, ...]
    tried: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    cpu_seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_recalled: bool = False

    @property
    def best(self) -> Candidate:
        """The first."""
        return self.ranked[0]

    @property
    def merged(self) -> tuple[Candidate, ...]:
        """Those that were scored as merged, the best first."""
        return tuple(one for one in self.ranked if one.measured is not None)


def tuned(
    stack: Stack,
    recipe: Recipe | None = None,
    *,
    top_n: int = 3,
    score: str = "own_foreign",
    evaluate: Evaluate | None = None,
    look: Look | None = None,
    progress: Progress = silent,
    device: torch.device | str = "cpu",
    measured: Sequence[Measured] | None = None,
    make_room: Callable[[int], object] | None = None,
    **given: Any,
) -> Tuned:
    """Sweep over the candidates of a recipe.

    Args:
        stack: the stack.
        recipe: what is not tuned.
        top_n: how many candidates are merged; at least 1.
        score: the name of the score.
        evaluate: asked for every candidate that is merged.
        look: looks at every candidate that is merged, before it is judged.
        progress: told after every target and candidate; what it raises ends the sweep.
        device: where element-wise work is done.
        measured: of the groups, if somebody has measured them already.
        make_room: asked to free so many bytes of the device before it is used.
        given: passed on to `execute`.

    Raises:
        FileError: a file cannot be read.
        RecipeError: the score is unknown, or `top_n` is no positive number.
    """
    if top_n < 1:
        raise RecipeError(f"The number of candidates to merge is {top_n}; it must be at least 1.")
    judge, clock = SCORES[score], _Clock()
    measured = measured or measure(stack, progress=progress)
    pulls = pulls_of(stack, progress)
    predictor = Predictor(stack, measured, pulls)
    clock.stop("analyse")
    wanted = candidates(recipe or Recipe())
    ranked = _predicted(predictor, wanted, judge, top_n, progress)
    clock.stop("predict")
    merged: list[Candidate] = []
    waiting: dict[int, Future[Verdict]] = {}
    leader, kept = 0, ()
    wants_patches = evaluate is not None or (look is not None and look.wants_patches)
    with abandoned(waiting):
        for place, one in enumerate(ranked[:top_n]):
            began = perf_counter()
            held, facts = predictor.held(one.recipe)
            plan = make_plan(held, one.recipe, measured, progress, facts)
            ask_room(make_room, torch.device(device), [plan])
            patches: tuple[Patch, ...] = ()
            if not wants_patches and is_exact(plan, pulls):
                errors = combined_errors(stack, pulls, plan)
            else:
                patches = tuple(execute(stack, plan, progress, device, **given))
                errors = reached(stack, pulls, plan, patches, progress)
            made = replace(one, plan=plan, errors=errors, measured=judge(errors))
            if look is not None:
                made = replace(made, seen=look(stack, measured, plan, patches))
            if evaluate is not None:
                said = evaluate(Trial(stack, measured, made, patches, progress))
                if isinstance(said, Future):
                    waiting[place] = said
                else:
                    made = replace(made, verdict=said)
            merged.append(replace(made, seconds=perf_counter() - began))
            if place == 0 or merged[place].score > merged[leader].score:
                leader, kept = place, patches
            del patches
        for place, verdict in settled(waiting, progress).items():
            merged[place] = replace(merged[place], verdict=verdict)
    best = max(range(len(merged)), key=lambda place: merged[place].score)
    plan = merged[best].plan
    assert plan is not None
    if best != leader or not kept:  # a verdict came after its patches had gone, or none were needed
        kept = ()
        kept = tuple(execute(stack, plan, progress, device, **given))
        if look is not None:
            merged[best] = replace(merged[best], seen=look(stack, measured, plan, kept))
    clock.stop("merge")
    first = sorted(merged, key=lambda one: -one.score)
    return Tuned(
        stack=stack,
        measured=measured,
        score=score,
        ranked=(*first, *ranked[top_n:]),
        patches=kept,
        tried=len(wanted),
        seconds=clock.seconds,
        cpu_seconds=clock.cpu_seconds,
        notes=(*plan.notes, *_unanswered(merged)),
    )


def _predicted(
    predictor: Predictor,
    wanted: Mapping[str, Recipe],
    judge: Callable[[Errors], float],
    top_n: int,
    progress: Progress,
) -> list[Candidate]:
    """The candidates by their predicted scores; of what is sampled, only the promising is looked at closely."""
    found: dict[object, Candidate] = {}
    for name, one in told(wanted.items(), len(wanted), "predict", progress):
        seen = predictor.of(one, FEW)
        if seen.key in found:
            first = found[seen.key]
            found[seen.key] = replace(first, same=(*first.same, name))
        else:
            found[seen.key] = _candidate(name, one, seen, judge)
    scores = sorted((one.predicted for one in found.values()), reverse=True)
    least = scores[min(top_n, len(scores)) - 1] - MARGIN
    ranked = []
    for one in found.values():
        if one.is_sampled and one.predicted >= least:
            seen = predictor.of(one.recipe)
            ranked.append(replace(_candidate(one.name, one.recipe, seen, judge), same=one.same))
        else:
            ranked.append(one)
    return sorted(ranked, key=lambda one: -one.predicted)


def _candidate(name: str, recipe: Recipe, seen: Prediction, judge: Callable[[Errors], float]) -> Candidate:
    spread = _spread(seen, judge)
    return Candidate(name, recipe, judge(seen.errors), spread, seen.errors, is_sampled=seen.is_sampled)


def _unanswered(merged: Sequence[Candidate]) -> list[str]:
    """A sentence on candidates that an evaluator failed on, if there are any."""
    failed = [one for one in merged if one.verdict is not None and one.verdict.error]
    if not failed:
        return []
    first = failed[0].verdict
    assert first is not None
    return [
        f"The evaluator gave no score for {len(failed)} of {len(merged)} candidates, which count by our own score"
        f" alone; for {failed[0].name}: {first.error}"
    ]


def _spread(seen: Prediction, judge: Callable[[Errors], float]) -> float:
    """The standard error of a score, by leaving out one sampled target after the other (the jackknife)."""
    count = len(seen.parts)
    if count < 2:
        return 0.0
    scores = [judge(one) for one in seen.parts]
    mean = sum(scores) / count
    return ((count - 1) / count * sum((one - mean) ** 2 for one in scores)) ** 0.5


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}
        self._began, self._cpu_began = perf_counter(), process_time()

    def stop(self, phase: str) -> None:
        now, cpu_now = perf_counter(), process_time()
        self.seconds[phase], self.cpu_seconds[phase] = now - self._began, cpu_now - self._cpu_began
        self._began, self._cpu_began = now, cpu_now
