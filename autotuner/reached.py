"""How far a merge that was made is from each of its LoRAs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.progress import Progress, silent, told
from ..core.threads import one_thread
from ..lora.factors import Delta, LowRank
from ..lora.stack import Stack
from ..merging.patch import Patch
from ..merging.plan import Plan
from .pulls import Pulls, row_space
from .scores import Errors

ROUNDING = 1e-3  # relative; half precision's is less


def reached(
    stack: Stack, pulls: Sequence[Pulls], plan: Plan, patches: Sequence[Patch], progress: Progress = silent
) -> Errors:
    """The errors of patches, one a group of the stack, in their order.

    A combination whose result is exact but for rounding is scored from dot products; all else from its values.

    Args:
        stack: what was merged.
        pulls: of its groups.
        plan: by which it was merged.
        patches: the results.
        progress: told after every target.

    Raises:
        FileError: a file cannot be read.
    """
    is_made = [
        target.work is not None or patch.error > ROUNDING
        for target, patch in zip(plan.targets, patches, strict=True)
    ]
    own, everything, whole = combinations(stack, pulls, plan, [not one for one in is_made])
    seen = {place for one in pulls for place in one.places}
    triples = zip(stack.walk(), patches, range(len(patches)), strict=True)
    with torch.no_grad(), one_thread():
        for group, patch, place in told(triples, len(patches), "score", progress):
            if place in seen and not is_made[place]:
                continue
            # A result that is not kept is made once for all of them.
            merged = patch.delta.times(1.0)
            for one, delta in zip(group.contributions, stack.load(group), strict=True):
                strength = stack.entries[one.entry].strength_on(group.target)
                near, far, energy = energies(merged, delta, strength)
                own[one.entry] += near
                everything[one.entry] += far
                whole[one.entry] += energy
    return Errors.of(own, everything, whole)


def is_exact(plan: Plan, pulls: Sequence[Pulls]) -> bool:
    """Whether the dot products say all about the results of a plan: combinations that nothing is cut off of."""
    places = {place for one in pulls for place in one.places}
    is_whole = plan.recipe.rank == 0 and plan.recipe.tolerance == 0.0 and len(places) == len(plan.targets)
    return is_whole and all(target.work is None for target in plan.targets)


def combined_errors(stack: Stack, pulls: Sequence[Pulls], plan: Plan) -> Errors:
    """The errors of a plan whose results are combinations of whole deltas."""
    own, everything, whole = combinations(stack, pulls, plan, [True] * len(plan.targets))
    return Errors.of(own, everything, whole)


def combinations(stack: Stack, pulls: Sequence[Pulls], plan: Plan, is_chosen: Sequence[bool]) -> Tensor:
    """Energies of the errors on LoRAs' inputs, of all errors, and of the LoRAs, over chosen targets: `(3, N)`."""
    energies = torch.zeros(3, len(stack.entries), dtype=torch.float64)
    for one in pulls:
        kept = [at for at, place in enumerate(one.places) if is_chosen[place]]
        coefficients = one.strengths.clone()
        for at in kept:
            coefficients[at] = torch.tensor(plan.targets[one.places[at]].coefficients, dtype=torch.float64)
        near, far = one.energies(coefficients)
        for row, values in enumerate((near, far, one.whole)):
            energies[row, list(one.entries)] += values[kept].sum(0)
    return energies


def energies(merged: Delta, delta: Delta, strength: float) -> tuple[float, float, float]:
    """`‖(M − wΔ) P‖²`, `‖M − wΔ‖²` and `‖wΔ‖²`."""
    basis = row_space(delta)
    if isinstance(merged, LowRank) and isinstance(delta, LowRank):
        up, down = delta.up.double() * (strength * delta.scale), delta.down.double()
        whole = float(((up.T @ up) * (down @ down.T)).sum().clamp(min=0))
        up = torch.cat([merged.up.double() * merged.scale, -up], 1)
        down = torch.cat([merged.down.double(), down])
        outer, inner = up.T @ up, down @ basis.double()
        near, far = outer * (inner @ inner.T), outer * (down @ down.T)
        return float(near.sum().clamp(min=0)), float(far.sum().clamp(min=0)), whole
    given = strength * delta.flat()
    error = merged.flat() - given
    return _energy(error @ basis), _energy(error), _energy(given)


def _energy(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
