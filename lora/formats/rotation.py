"""What the orthogonal formats share: rotations from skew-symmetric matrices."""

import torch
from torch import Tensor


def cayley(skew: Tensor) -> Tensor:
    """The rotations `(I + Q)(I − Q)⁻¹` of skew-symmetric `(..., b, b)`, in float64."""
    skew = skew.double()
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype)
    return torch.linalg.solve(eye - skew, eye + skew, left=False)


def skewed(blocks: Tensor) -> Tensor:
    """`B − Bᵀ` of blocks `(..., b, b)`, in float64."""
    blocks = blocks.double()
    return blocks - blocks.transpose(-1, -2)


def limited(skew: Tensor, limit: float) -> Tensor:
    """Skew-symmetric matrices, scaled down together so that their norm is `limit` at most; 0 is no limit."""
    norm = float(skew.norm()) + 1e-8
    return skew * (limit / norm) if 0 < limit < norm else skew


def blocks_problem(shape: tuple[int, ...], axes: int) -> str:
    """What is wrong with the shape of blocks of `axes` axes, the last two of them square; empty if nothing."""
    if len(shape) != axes or shape[-1] != shape[-2] or 0 in shape:
        return f"has rotations of shape {shape}, not square blocks"
    return ""
