"""Runs a plan, target by target: a generator of patches, one target in memory at a time."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import hypot, prod
from typing import Any

import torch

from ..analysis.similarity import dots, gram_matrix
from ..core.errors import RecipeError
from ..core.progress import Progress, beating, silent, told
from ..core.threads import one_thread
from ..lora.factors import Delta
from ..lora.formats import Module
from ..lora.full import Dense, Kron
from ..lora.stack import Group, Stack
from .combine import combined_keeping
from .deferred import deferred
from .elements import blended, norm_of
from .forms import form_of
from .methods import METHODS
from .methods.spherical import combined_norm
from .patch import Patch, rounded
from .plan import Plan, TargetPlan, is_for
from .recipe import AUTO
from .remembering import Remember, remembered

WORKING = 10  # times a delta's size, that a method needs beside the deltas of a whole target
COUNTERS = 4 << 20  # bytes, for the counts that thresholds are found by
NOTICEABLE = 1e-3  # an error that retention must show: half precision's rounding is less
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_WIDTH = {"F64": 3, "F32": 3, "F16": 2, "BF16": 1}


def execute(
    stack: Stack,
    plan: Plan,
    progress: Progress = silent,
    device: torch.device | str = "cpu",
    *,
    is_lazy: bool = False,
    remember: Remember | None = None,
) -> Iterator[Patch]:
    """The patches of a plan, in its order.

    Args:
        stack: the stack the plan was made for.
        plan: what to do; nothing is decided here.
        progress: told after every target, and the same again now and then within one; what it raises ends the merge.
        device: where element-wise work is done; all else is small and stays on the CPU.
        is_lazy: results of full rank are let go again, and made anew whenever somebody asks for their values.
        remember: keeps deltas that element-wise work on the CPU multiplies out; the result is the same, bit for bit.

    Raises:
        RecipeError: the plan is for another stack.
        ProofError: a result is too large for the recipe's dtype.
    """
    if not is_for(plan, stack):
        raise RecipeError(
            "The plan was made for another stack: other files, strengths, order or targets. Make it again."
        )
    dtype = output_dtype(stack, plan)
    pairs = zip(stack.walk(), plan.targets, strict=True)
    total = len(plan.targets)
    for done, (group, target) in enumerate(told(pairs, total, "merge", progress)):
        make = partial(_made, stack, group, target, plan, dtype, device, remember)
        with beating(partial(progress, "merge", done, total)):
            made = make()
        yield deferred(made, make) if is_lazy else made


def ask_room(make_room: Callable[[int], object] | None, device: torch.device, plans: Iterable[Plan]) -> None:
    """Ask a host once to free what the largest target of some plans needs on a device."""
    largest = max(map(needed, plans), default=0)
    if make_room is not None and largest and device.type != "cpu":
        make_room(largest)


def needed(plan: Plan) -> int:
    """The bytes that the element-wise work of a plan takes on a device at most; 0 without any."""
    with_work = [(prod(one.shape), len(one.work.places)) for one in plan.targets if one.work]
    return max((4 * size * (count + WORKING) + COUNTERS for size, count in with_work), default=0)


def _made(*given: Any) -> Patch:
    """`patch_of`, the same bits whoever calls it and when."""
    with torch.no_grad(), one_thread():
        return patch_of(*given)


def width_of(module: Module) -> int:
    """How wide the storage dtype of a module is, in the order of results' dtypes."""
    return _WIDTH.get(module.dtype, 2)


def output_dtype(stack: Stack, plan: Plan) -> torch.dtype:
    """The dtype of a plan's results: the one asked for, or the widest of the inputs, at least 16 bits."""
    if plan.recipe.dtype != AUTO:
        return _DTYPES[plan.recipe.dtype]
    widest = max(
        width_of(contribution.module) for group in stack.groups for contribution in group.contributions
    )
    return {3: torch.float32, 2: torch.float16, 1: torch.bfloat16}[widest]


def patch_of(
    stack: Stack,
    group: Group,
    target: TargetPlan,
    plan: Plan,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    remember: Remember | None = None,
) -> Patch:
    """The patch of one target of a plan, whatever the others are.

    Args:
        stack: the stack the plan was made for.
        group: the target, with what the stack brings to it.
        target: its record in the plan.
        plan: the plan.
        dtype: of the result.
        device: where element-wise work is done.
        remember: as in `execute`.

    Raises:
        ProofError: the result is too large for the dtype.
    """
    recipe, work = plan.recipe, target.work
    given = deltas = stack.load(group)
    coefficients = list(target.coefficients)
    is_kept = [plan.sources[entry].preserve for entry in target.entries]
    rank, tolerance, norm, unshared = recipe.rank, recipe.tolerance, target.norm, 0.0
    if work is not None:
        blending = [deltas[place] for place in work.places]
        known = remember and partial(remembered, stack, group, work.places, blending, remember)
        blend, unshared = blended(blending, work, METHODS[target.method], str(group.target), device, known)
        others = [place for place in range(len(deltas)) if place not in work.places]
        top = sum(deltas[place].rank for place in others if is_kept[place])
        rank, tolerance = form_of(blend, recipe, sum(delta.rank for delta in blending), top)
        deltas = [blend, *(deltas[place] for place in others)]
        coefficients = [1.0, *(coefficients[place] for place in others)]
        is_kept = [False, *(is_kept[place] for place in others)]
    delta, kept, lost = combined_keeping(deltas, coefficients, is_kept, rank, tolerance)
    if work is not None:
        factors = torch.tensor(coefficients, dtype=torch.float64)
        norm = combined_norm(gram_matrix(deltas), factors) if len(deltas) > 1 else norm_of(deltas[0])
    made = rounded(group.target, _in_shape(delta, group.shape), dtype, norm, may_widen=recipe.dtype == AUTO)
    error = hypot(lost, made.rounding, unshared)
    made = replace(made, error=error, kept=kept, cut=lost, unshared=unshared)
    if work is None and made.error < NOTICEABLE:
        return made
    return replace(made, projections=dots(made.delta, given))


def _in_shape(delta: Delta, shape: tuple[int, ...]) -> Delta:
    """The delta with its target's own shape; a product whose factors do not divide by the kernel is multiplied out."""
    if isinstance(delta, Kron) and delta.b.shape[1] % prod(shape[2:]):
        return Dense(delta.flat(), 1.0, shape)
    return replace(delta, shape=shape)
