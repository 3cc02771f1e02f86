"""DARE, but only where LoRAs push against each other (seed, Merge Algorithms: Conflict-Aware Variants).

What one LoRA alone changes, and what all push the same way, stays as it is. There is no fallback to DARE everywhere,
however much is contested: unrelated LoRAs disagree on half of all entries.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Span
from . import dare


def sparsify(
    delta: Tensor,
    *,
    density: Annotated[float, Span(0.01, 1.0)] = 0.7,
    dampening: Annotated[float, Span(0.0, 1.0)] = 0.0,
    uniform: Tensor,
    contested: Tensor,
) -> Tensor:
    """DARE at the contested entries; the arguments are those of `dare.sparsify`.

    Args:
        delta: `(t, c)`.
        density: expected share of the contested entries that stay.
        dampening: 0 divides what stays by `density`, 1 leaves it as it is.
        uniform: `(t, c)`, numbers in [0, 1).
        contested: `(t, c)`, where LoRAs of both signs meet.
    """
    thin = dare.sparsify(delta, density=density, dampening=dampening, uniform=uniform)
    return torch.where(contested, thin, delta)
