"""Karcher mean: the point of the sphere nearest to all directions, at the parts' mean length.

The order-free form of SLERP for any number of LoRAs (Grove and Karcher, 1973; `spec/newer-features.md` §2.5).
All steps stay in the span of the deltas, so the Gram matrix is enough and the result is exact in factors.
"""

import torch
from torch import Tensor

from .spherical import at_norm, combined_norm, expected_norm, is_antipodal, signed

DEGREE = 0
STEPS = 64
CLOSE = 1e-10


def coefficients(gram: Tensor, strengths: Tensor) -> Tensor:
    """Coefficients of the spherical mean.

    Args:
        gram: `(n, n)` float64, dot products of the deltas at strength 1.
        strengths: `(n,)` float64, none 0.

    Returns:
        `(n,)`; the combination's norm is the weighted mean of the parts' norms. Where the parts all but
        cancel, those of the weighted average.
    """
    turned, shares, signs = signed(gram, strengths)
    norms = turned.diagonal().clamp(min=0).sqrt()
    if is_antipodal(gram, strengths) or bool((norms == 0).any()):
        return shares * signs
    unit = turned / (norms[:, None] * norms)
    start = at_norm(unit, shares, 1.0)
    if combined_norm(unit, start) == 0:
        return shares * signs
    mean = _mean_direction(unit, shares, start)
    return at_norm(turned, mean / norms, expected_norm(turned, shares)) * signs


def _mean_direction(unit: Tensor, shares: Tensor, mean: Tensor) -> Tensor:
    """Gradient steps on the sphere, as coefficients of the unit directions."""
    for _ in range(STEPS):
        cosine = (unit @ mean).clamp(-1 + CLOSE, 1 - CLOSE)
        angle = torch.arccos(cosine)
        pull = shares * angle / torch.sin(angle)
        step = pull - (pull @ cosine) * mean
        length = combined_norm(unit, step)
        if length < CLOSE:
            break
        turn = torch.tensor(length, dtype=mean.dtype)
        mean = at_norm(unit, torch.cos(turn) * mean + torch.sin(turn) * step / length, 1.0)
    return mean
