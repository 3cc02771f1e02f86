"""How much of each LoRA is left in a merge: `⟨M, Δ_k⟩ / ‖Δ_k‖²` relative to its strength.

1 is fully there, 0 gone, negative reversed; above 1, another LoRA pushes the same way (`design.md` §1.3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..analysis.blocks import block_of
from ..analysis.similarity import Measured
from ..lora.stack import Stack
from .patch import Patch
from .plan import Plan, TargetPlan


@dataclass(frozen=True)
class Retention:
    """The shares of one LoRA that are left: of all its targets, and block by block."""

    overall: float
    blocks: dict[str, float]


def percent(share: float) -> str:
    """A share in whole per cent, without the sign of a zero."""
    return f"{round(100 * share)}%"


def retention(
    stack: Stack, plan: Plan, measured: Sequence[Measured], patches: Sequence[Patch]
) -> tuple[Retention, ...]:
    """The retention of every entry of the stack, in its order.

    It is 1 for a LoRA whose deltas are all zero, and 0 for one without a target here. Patches may be left out where the
    plan is of combinations only, for it tells all of them.
    """
    kept = [dict[str, list[float]]() for _ in stack.entries]
    for target, one, patch in zip(plan.targets, measured, patches or [None] * len(measured), strict=True):
        projected = _projected(target, one, patch)
        for place, entry in enumerate(one.entries):
            strength = stack.entries[entry].strength_on(target.target)
            if strength == 0.0:
                continue
            sums = kept[entry].setdefault(block_of(target.target), [0.0, 0.0])
            # Weighted by strength: a text encoder at half strength counts for what it does.
            sums[0] += float(projected[place]) * strength
            sums[1] += float(one.gram[place, place]) * strength * strength
    return tuple(map(shares_of, kept))


def shares_of(blocks: Mapping[str, Sequence[float]]) -> Retention:
    """Retention from sums by block: of what is left, `w⟨M, Δ⟩`, and of what there was, `w²‖Δ‖²`."""
    if not blocks:
        return Retention(0.0, {})
    return Retention(
        _share(sum(top for top, _ in blocks.values()), sum(bottom for _, bottom in blocks.values())),
        {name: _share(top, bottom) for name, (top, bottom) in blocks.items()},
    )


def _projected(target: TargetPlan, one: Measured, patch: Patch | None) -> Tensor:
    """`⟨M, Δ_k⟩`, `(n,)`: of what was planned, or of the patch, where the plan does not tell it."""
    if patch is not None and patch.projections:
        return torch.tensor(patch.projections, dtype=torch.float64)
    return one.gram @ torch.tensor(target.coefficients, dtype=torch.float64)


def _share(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0 else 1.0
