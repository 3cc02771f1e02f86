"""Karcher mean: the point of the sphere nearest to all directions, at the parts' mean length.

The order-free form of SLERP for any number of LoRAs (Grove and Karcher, 1973; `spec/newer-features.md` §2.5).
All steps stay in the span of the deltas, so the Gram matrix is enough and the result is exact in factors.
"""

import torch
from torch import Tensor

from .spherical import at_norm, combined_norm, directions, expected_norm, is_antipodal, signed

PAPER = "Grove and Karcher 1973, How to conjugate C1-close group actions"
DEGREE = 0
STEPS = 1000  # a dozen do for a usual stack; directions almost all round take hundreds
PATIENCE = 8  # steps without gain: what is left of the pull is rounding
CLOSE = 1e-10
ACROSS = -0.999


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
    if cancels(gram, strengths):
        return shares * signs
    unit = directions(turned)
    mean = _mean_direction(unit, shares, at_norm(unit, shares, 1.0))
    norms = turned.diagonal().sqrt()
    return at_norm(turned, mean / norms, expected_norm(turned, shares)) * signs


def cancels(gram: Tensor, strengths: Tensor) -> bool:
    """Whether the deltas, or their directions, all but cancel, so that no mean direction can be told.

    A strong and a weak LoRA that oppose each other leave a clear delta, yet their directions leave nothing.
    """
    turned, shares, _ = signed(gram, strengths)
    if is_antipodal(turned, shares) or not bool((turned.diagonal() > 0).all()):
        return True
    return is_antipodal(directions(turned), shares)


def _mean_direction(unit: Tensor, shares: Tensor, mean: Tensor) -> Tensor:
    """Gradient steps on the sphere, as coefficients of the unit directions."""
    shortest, idle = float("inf"), 0
    for _ in range(STEPS):
        cosine = (unit @ mean).clamp(-1 + CLOSE, 1 - CLOSE)
        angle = torch.arccos(cosine)
        # What lies straight across has no shortest way here: duplicates of opposed strengths pull nowhere.
        pull = torch.where(cosine > ACROSS, shares * angle / torch.sin(angle), 0.0)
        step = pull - (pull @ cosine) * mean
        length = combined_norm(unit, step)
        idle = 0 if length < shortest else idle + 1
        shortest = min(shortest, length)
        if length < CLOSE or idle > PATIENCE:
            break
        turn = torch.tensor(length, dtype=mean.dtype)
        mean = at_norm(unit, torch.cos(turn) * mean + torch.sin(turn) * step / length, 1.0)
    return mean
