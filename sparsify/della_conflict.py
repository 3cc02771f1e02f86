"""DELLA, but only where LoRAs push against each other (seed, Merge Algorithms: Conflict-Aware Variants).

What one LoRA alone changes, and what all push the same way, stays as it is. There is no fallback to DELLA everywhere,
however much is contested: unrelated LoRAs disagree on half of all entries.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Span
from . import della


def sparsify(
    delta: Tensor, *, density: Annotated[float, Span(0.01, 1.0)] = 0.7, uniform: Tensor, contested: Tensor
) -> Tensor:
    """DELLA at the contested entries; ranks are those of whole rows.

    Args:
        delta: `(t, c)`.
        density: expected share of the entries that would stay if all were contested.
        uniform: `(t, c)`, numbers in [0, 1).
        contested: `(t, c)`, where LoRAs of both signs meet.
    """
    return torch.where(contested, della.sparsify(delta, density=density, uniform=uniform), delta)
