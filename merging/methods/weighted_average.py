"""Weighted average: the sum over the total strength.

Source: seed, Merge Algorithms: Weighted Average.
"""

import torch
from torch import Tensor

DEGREE = 0


def coefficients(gram: Tensor, strengths: Tensor) -> Tensor:
    """`w_k / Σ|w|`: each LoRA has its fair part, and none is as strong as alone.

    Args:
        gram: `(n, n)`, not looked at.
        strengths: `(n,)` float64.
    """
    total = strengths.abs().sum()
    return strengths / total if total > 0 else torch.zeros_like(strengths)
