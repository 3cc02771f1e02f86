"""Trim by magnitude, the first step of TIES (Yadav et al., arXiv:2306.01708; seed, Merge Algorithms: TIES)."""

import torch
from torch import Tensor


def sparsify(delta: Tensor, *, threshold: float) -> Tensor:
    """Keep the entries whose magnitude is at least `threshold`.

    Args:
        delta: `(t, c)`.
        threshold: the magnitude of the last entry that stays, over the whole target; entries of equal magnitude
            stay together.
    """
    return torch.where(delta.abs() >= threshold, delta, 0)
