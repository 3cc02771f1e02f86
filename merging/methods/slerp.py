"""SLERP: blend along the great circle and keep the length.

Source: seed, Merge Algorithms: SLERP. Departure from it: where the parts all but cancel, the result is the
weighted average, and so is the blend of a pair that does so on the way: scaling what is left of a
cancellation up to the parts' norm would amplify rounding (`design.md` §3).
"""

import torch
from torch import Tensor

from .spherical import ANTIPODAL, at_norm, combined_norm, expected_norm, is_antipodal, signed

PAPER = "Shoemake 1985, Animating rotation with quaternion curves"
DEGREE = 0
PARALLEL = 1e-4


def coefficients(gram: Tensor, strengths: Tensor) -> Tensor:
    """Coefficients of the blend; three and more are blended one by one, strongest first.

    Args:
        gram: `(n, n)` float64, dot products of the deltas at strength 1.
        strengths: `(n,)` float64, none 0.

    Returns:
        `(n,)`; the combination's norm is the weighted mean of the parts' norms.
    """
    turned, shares, signs = signed(gram, strengths)
    if is_antipodal(turned, shares):
        return shares * signs
    order = _strongest_first(turned, shares)
    blend = torch.zeros_like(shares)
    blend[order[0]] = 1.0
    weight = float(shares[order[0]])
    for index in order[1:]:
        weight += float(shares[index])
        part = torch.zeros_like(shares)
        part[index] = 1.0
        blend = _between(turned, blend, part, float(shares[index]) / weight)
    return at_norm(turned, blend, expected_norm(turned, shares)) * signs


def cancels(gram: Tensor, strengths: Tensor) -> bool:
    """Whether the deltas, with their strengths, all but cancel, so that there is no direction to blend along."""
    turned, shares, _ = signed(gram, strengths)
    return is_antipodal(turned, shares)


def _strongest_first(gram: Tensor, shares: Tensor) -> list[int]:
    # Equal strengths go by norm, then by likeness to the rest: never by their place in the stack.
    norms, likeness = gram.diagonal(), gram.sum(1)
    return sorted(
        range(len(shares)), key=lambda k: (-float(shares[k]), -float(norms[k]), -float(likeness[k]))
    )


def _between(gram: Tensor, first: Tensor, second: Tensor, t: float) -> Tensor:
    straight = (1 - t) * first + t * second
    length, other = combined_norm(gram, first), combined_norm(gram, second)
    if combined_norm(gram, straight) <= ANTIPODAL * ((1 - t) * length + t * other):
        return straight
    cosine = (first @ gram @ second) / (length * other) if length * other > 0 else gram.new_tensor(1.0)
    angle = torch.arccos(cosine.clamp(-1, 1))
    # Between directions that are all but opposite there is no way round but through what is noise.
    if torch.sin(angle) < (PARALLEL if cosine > 0 else ANTIPODAL):
        return straight
    return (torch.sin((1 - t) * angle) * first + torch.sin(t * angle) * second) / torch.sin(angle)
