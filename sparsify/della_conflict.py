"""DELLA where LoRAs contradict each other, and nowhere else.

Source: seed, Sparsification Methods: Conflict-Aware Variants. There is no fallback to DELLA everywhere, however much
is contested: two unrelated LoRAs contest half of all entries, so that would be the rule.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Span
from . import della

PAPER = "DELLA: Deep et al. 2024, arXiv:2406.11617"


def sparsify(
    delta: Tensor,
    *,
    density: Annotated[float, Span(0.01, 1.0)] = 0.7,
    uniform: Tensor,
    contested: Tensor,
) -> Tensor:
    """Do to the contested entries what DELLA does to all; the others stay as they are.

    An entry is ranked within its whole row: how little it matters does not depend on what the others do. So the
    share that stays of the contested entries is `density` if they are as large as the rest.

    Args:
        delta: `(t, c)`.
        density: expected share of the contested entries that stay, if they are as large as the others.
        uniform: `(t, c)`, numbers in [0, 1).
        contested: `(t, c)` bool, where this target is pushed both ways.
    """
    return torch.where(contested, della.sparsify(delta, density=density, uniform=uniform), delta)
