"""Runs a plan, target by target: a generator of patches, one target in memory at a time."""

from collections.abc import Iterator
from math import isfinite

import torch
from torch import Tensor

from ..core.errors import ProofError, RecipeError
from ..core.linalg import truncate
from ..core.progress import Progress, silent, told
from ..core.threads import one_thread
from ..lora.factors import stacked
from ..lora.stack import Group, Stack
from .patch import Patch
from .plan import Plan, TargetPlan, is_for

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_WIDTH = {"F64": 3, "F32": 3, "F16": 2, "BF16": 1}


def execute(stack: Stack, plan: Plan, progress: Progress = silent) -> Iterator[Patch]:
    """The patches of a plan, in its order.

    Args:
        stack: the stack the plan was made for.
        plan: what to do; nothing is decided here.
        progress: told after every target; what it raises ends the merge.

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
    for group, target in told(pairs, len(plan.targets), "merge", progress):
        with torch.no_grad(), one_thread():
            patch = _patch(stack, group, target, plan, dtype)
        yield patch


def output_dtype(stack: Stack, plan: Plan) -> torch.dtype:
    """The dtype of a plan's results: the one asked for, or the widest of the inputs, at least 16 bits."""
    if plan.recipe.dtype != "auto":
        return _DTYPES[plan.recipe.dtype]
    widest = max(
        _WIDTH.get(contribution.module.dtype, 2)
        for group in stack.groups
        for contribution in group.contributions
    )
    return {3: torch.float32, 2: torch.float16, 1: torch.bfloat16}[widest]


def _patch(stack: Stack, group: Group, target: TargetPlan, plan: Plan, dtype: torch.dtype) -> Patch:
    up, down = stacked(stack.load(group), target.coefficients)
    lost = 0.0
    limit = min(up.shape[0], down.shape[1])
    rank = min(plan.recipe.rank or limit, limit)
    if plan.recipe.tolerance > 0 or rank < down.shape[0]:
        up, down, lost = truncate(up, down, rank, plan.recipe.tolerance)
    cast_up, cast_down = up.to(dtype), down.to(dtype)
    if not isfinite(float(cast_up.abs().amax()) + float(cast_down.abs().amax())):
        raise ProofError(
            f"The result on {group.target} is too large for {dtype}; merge with `--dtype float32`."
        )
    error = (lost**2 + _rounding(up, down, cast_up, cast_down, target.norm) ** 2) ** 0.5
    return Patch(group.target, group.shape, cast_up, cast_down, error)


def _rounding(up: Tensor, down: Tensor, cast_up: Tensor, cast_down: Tensor, norm: float) -> float:
    """`‖cast_up @ cast_down − up @ down‖ / norm`, from factors; never less than it is."""
    if norm == 0.0 or cast_up.dtype == up.dtype:
        return 0.0
    up_off, rounded = cast_up.float() - up, cast_down.float()
    down_off = rounded - down
    off = _norm(up_off, rounded)
    # Powers of two leave the down's digits alone, but for its smallest entries: the bound is all but zero
    # then.
    bound = float(up.norm()) * float(down_off.norm())
    if bound > 0.05 * off:
        off, bound = _norm(torch.cat([up_off, up], 1), torch.cat([rounded, down_off])), 0.0
    return (off + bound) / norm


def _norm(up: Tensor, down: Tensor) -> float:
    energy = ((up.T @ up).double() * (down @ down.T)).sum()
    return float(energy.clamp(min=0).sqrt())
