"""DO-merging: make the directions of LoRAs orthogonal, and keep their norms (after arXiv:2505.15875).

Source: seed, Merge Algorithms: DO-Merging: modified Gram-Schmidt by descending norm. Everything happens in the span
of the deltas, so their Gram matrix is enough. Rulings (`design.md` §3): LoRAs whose cosine is beyond 0.9 leave each
other alone, for what an orthogonalisation leaves of a duplicate is noise; `symmetric` is Löwdin's orthogonalisation,
which treats all alike. The paper itself moves the factors by gradient descent.
"""

import torch
from torch import Tensor

ALIKE = 0.9
SMALL = 1e-10


def matrix(gram: Tensor, *, symmetric: bool = False) -> Tensor:
    """Row j has the coefficients of the j-th LoRA's new delta.

    Args:
        gram: `(n, n)` float64, dot products of the deltas.
        symmetric: orthogonalise all alike, not the weaker against the stronger.

    Returns:
        `(n, n)`; the norm of every new delta is that of the old one.
    """
    norms = gram.diagonal().clamp(min=0).sqrt()
    bottom = norms[:, None] * norms
    cosines = torch.where(bottom > 0, gram / bottom.clamp(min=1e-300), 0)
    directions = _lowdin(cosines) if symmetric else _gram_schmidt(cosines, _order(norms, cosines))
    # From directions back to deltas: each new one at its old norm, of old ones at strength 1.
    made = directions * norms[:, None] / norms.clamp(min=1e-300)
    return torch.where((norms > 0)[:, None] & (norms > 0), made, torch.eye(len(gram), dtype=gram.dtype))


def _order(norms: Tensor, cosines: Tensor) -> list[int]:
    # Equal norms go by likeness to the rest: never by their place in the stack.
    likeness = cosines.sum(1)
    return sorted(range(len(norms)), key=lambda k: (-float(norms[k]), -float(likeness[k])))


def _gram_schmidt(cosines: Tensor, order: list[int]) -> Tensor:
    made = torch.eye(len(cosines), dtype=cosines.dtype)
    for place, index in enumerate(order):
        row = made[index].clone()
        for other in order[:place]:
            if abs(float(cosines[index, other])) > ALIKE:
                continue
            row = row - (row @ cosines @ made[other]) * made[other]
        size = float((row @ cosines @ row).clamp(min=0).sqrt())
        # What lies within the span of the others has no direction of its own, and stays as it was.
        made[index] = row / size if size > SMALL**0.5 else made[index]
    return made


def _lowdin(cosines: Tensor) -> Tensor:
    """`C^(-1/2)` in groups: LoRAs that are alike stay as they are, and orthogonal are made the rest."""
    made = torch.eye(len(cosines), dtype=cosines.dtype)
    alike = (cosines.abs() > ALIKE) & ~torch.eye(len(cosines), dtype=torch.bool)
    free = torch.nonzero(~alike.any(1)).flatten()
    if len(free) < 2:
        return made
    inner = cosines[free][:, free]
    values, vectors = torch.linalg.eigh(inner)
    if float(values[0]) <= SMALL:
        return made
    root = vectors @ torch.diag(values.rsqrt()) @ vectors.T
    for place, index in enumerate(free.tolist()):
        made[index, free] = root[place]
    return made
