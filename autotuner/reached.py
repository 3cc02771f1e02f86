"""How far a merge that was made is from each of its LoRAs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.progress import Progress, silent, told
from ..core.threads import one_thread
from ..lora.factors import Delta, LowRank
from ..lora.stack import Stack
from ..merging.patch import Patch
from .pulls import row_space
from .scores import Errors


def reached(stack: Stack, patches: Sequence[Patch], progress: Progress = silent) -> Errors:
    """The errors of patches, one a group of the stack, in their order; exact but for rounding.

    Raises:
        FileError: a file cannot be read.
    """
    own, everything, whole = torch.zeros(3, len(stack.entries), dtype=torch.float64)
    pairs = zip(stack.walk(), patches, strict=True)
    with torch.no_grad(), one_thread():
        for group, patch in told(pairs, len(patches), "score", progress):
            # A result that is not kept is made once for all of them.
            merged = patch.delta.times(1.0)
            for one, delta in zip(group.contributions, stack.load(group), strict=True):
                strength = stack.entries[one.entry].strength_on(group.target)
                near, far, energy = energies(merged, delta, strength)
                own[one.entry] += near
                everything[one.entry] += far
                whole[one.entry] += energy
    return Errors.of(own, everything, whole)


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
