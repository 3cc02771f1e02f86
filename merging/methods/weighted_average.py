"""Weighted average: the sum over the total strength.

Source: seed, Merge Algorithms: Weighted Average.
"""

import torch
from torch import Tensor

PAPER = "Model soups: Wortsman et al. 2022, arXiv:2203.05482"
DEGREE = 0


def coefficients(gram: Tensor, strengths: Tensor) -> Tensor:
    """`w_k / Σ|w|`: each LoRA has its fair part, and none is as strong as alone.

    Args:
        gram: `(n, n)`, not looked at.
        strengths: `(n,)` float64.
    """
    total = strengths.abs().sum()
    return strengths / total if total > 0 else torch.zeros_like(strengths)
