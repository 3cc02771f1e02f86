"""Runs a plan, target by target: a generator of patches, one target in memory at a time."""

from collections.abc import Iterator
from dataclasses import replace
from math import hypot, prod

import torch

from ..core.errors import RecipeError
from ..core.progress import Progress, silent, told
from ..core.threads import one_thread
from ..lora.factors import Delta
from ..lora.full import Dense, Kron
from ..lora.stack import Group, Stack
from .combine import combined_keeping
from .patch import Patch, rounded
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
    recipe = plan.recipe
    is_kept = [plan.sources[entry].preserve for entry in target.entries]
    delta, kept, lost = combined_keeping(
        stack.load(group), target.coefficients, is_kept, recipe.rank, recipe.tolerance
    )
    made = rounded(group.target, _in_shape(delta, group.shape), dtype, target.norm)
    return replace(made, error=hypot(lost, made.error), kept=kept)


def _in_shape(delta: Delta, shape: tuple[int, ...]) -> Delta:
    """The delta with its target's own shape; a product whose factors do not divide by the kernel is multiplied out."""
    if isinstance(delta, Kron) and delta.b.shape[1] % prod(shape[2:]):
        return Dense(delta.flat(), 1.0, shape)
    return replace(delta, shape=shape)
