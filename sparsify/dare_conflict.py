"""DARE where LoRAs contradict each other, and nowhere else.

Source: seed, Sparsification Methods: Conflict-Aware Variants. There is no fallback to DARE everywhere, however much
is contested: two unrelated LoRAs contest half of all entries, so that would be the rule.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Span
from . import dare

PAPER = "DARE: Yu et al. 2023, arXiv:2311.03099"


def sparsify(
    delta: Tensor,
    *,
    density: Annotated[float, Span(0.01, 1.0)] = 0.7,
    dampening: Annotated[float, Span(0.0, 1.0)] = 0.0,
    uniform: Tensor,
    contested: Tensor,
) -> Tensor:
    """Do to the contested entries what DARE does to all; the others stay as they are.

    Args:
        delta: `(t, c)`.
        density: expected share of the contested entries that stay.
        dampening: from 0, where the rest makes up for what was dropped, to 1, where nothing does.
        uniform: `(t, c)`, numbers in [0, 1).
        contested: `(t, c)` bool, where this target is pushed both ways.
    """
    thinned = dare.sparsify(delta, density=density, dampening=dampening, uniform=uniform)
    return torch.where(contested, thinned, delta)
