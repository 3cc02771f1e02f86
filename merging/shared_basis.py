"""KnOTS' shared basis of deltas that are kept in factors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..enhance import knots
from ..lora.factors import Delta, LowRank


def shared_basis(deltas: Sequence[Delta], rank_limit: int) -> tuple[Tensor, Tensor, float]:
    """The basis `(o, R)`, the deltas' blocks in it `(n, R, i)`, and the relative error that the limit costs.

    Args:
        deltas: of one target, at strength 1.
        rank_limit: the largest `R`.
    """
    return knots.shared([factors_of(delta) for delta in deltas], rank_limit=rank_limit)


def factors_of(delta: Delta) -> tuple[Tensor, Tensor]:
    """A delta as `(o, r)`, its scale in it, and `(r, i)`; float32. A full one is itself beside a unit matrix."""
    if isinstance(delta, LowRank):
        return delta.up.float() * delta.scale, delta.down.float()
    matrix = delta.flat()
    height, width = matrix.shape
    if height <= width:
        return torch.eye(height), matrix
    return matrix, torch.eye(width)
