"""SLERP: blend along the great circle and keep the length (seed, Merge Algorithms: SLERP).

Departure from the seed: where the parts all but cancel, the result is the weighted average, since scaling
what is left of a cancellation up to the parts' norm would amplify rounding (`design.md` §3).
"""

import torch
from torch import Tensor

from .spherical import at_norm, expected_norm, is_antipodal, signed

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
    if is_antipodal(gram, strengths):
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


def _strongest_first(gram: Tensor, shares: Tensor) -> list[int]:
    # Equal strengths go by norm, then by likeness to the rest: never by their place in the stack.
    norms, likeness = gram.diagonal(), gram.sum(1)
    return sorted(
        range(len(shares)), key=lambda k: (-float(shares[k]), -float(norms[k]), -float(likeness[k]))
    )


def _between(gram: Tensor, first: Tensor, second: Tensor, t: float) -> Tensor:
    dot = first @ gram @ second
    norms = ((first @ gram @ first) * (second @ gram @ second)).clamp(min=0).sqrt()
    cosine = (dot / norms).clamp(-1, 1) if norms > 0 else dot.new_tensor(1.0)
    angle = torch.arccos(cosine)
    if torch.sin(angle) < PARALLEL:
        return (1 - t) * first + t * second
    return (torch.sin((1 - t) * angle) * first + torch.sin(t * angle) * second) / torch.sin(angle)
