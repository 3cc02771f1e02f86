"""The exact singular values of a matrix of any rank, and the factors that its leading ones make."""

import torch
from torch import Tensor

SMALLEST = 1e-7  # relative to the largest singular value; what is smaller is rounding, and counts as 0
WIDTH, HEIGHT = 2048, 512  # of the blocks that are held in double precision at a time


def spectrum(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """All singular values, and the singular vectors of the shorter side.

    From the eigenvalues of the smaller Gram matrix in double precision: as good as a decomposition in single
    precision down to `SMALLEST`, in a fraction of its time, for only half of the vectors are made.

    Args:
        matrix: `(o, i)` float32, finite.

    Returns:
        `(m,)` float64, descending, and `(m, m)` float64, one vector a column; `m` is the smaller of `o` and `i`.
    """
    energies, vectors = torch.linalg.eigh(_gram(matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T))
    values = energies.flip(0).clamp(min=0).sqrt()
    return torch.where(values > SMALLEST * values[:1], values, 0), vectors.flip(1)


def effective_rank(values: Tensor) -> float:
    """`exp(H)` of singular values as shares of their sum (Roy and Vetterli, 2007); 0 if all are 0."""
    total = values.sum()
    shares = values / total.clamp(min=torch.finfo(values.dtype).tiny)
    return float(torch.exp(-torch.special.xlogy(shares, shares).sum())) if float(total) > 0 else 0.0


def leading(matrix: Tensor, values: Tensor, vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best approximation of `matrix` of a rank, from its spectrum.

    Args:
        matrix: `(o, i)` float32.
        values: `(m,)`, of `spectrum`.
        vectors: `(m, m)`, of `spectrum`.
        count: how many directions stay; not more than there are values that are not 0.

    Returns:
        `up (o, count)` and `down (count, i)`, the singular values shared between them.
    """
    kept = vectors[:, :count]
    root = values[:count].sqrt()
    inner, outer = (kept * root).to(matrix.dtype), (kept / root).to(matrix.dtype)
    if matrix.shape[0] <= matrix.shape[1]:
        return inner, outer.T @ matrix
    return matrix @ outer, inner.T.contiguous()


def _gram(matrix: Tensor) -> Tensor:
    """`M Mᵀ` in double precision; only its upper half is worked out."""
    size = matrix.shape[0]
    gram = torch.zeros(size, size, dtype=torch.float64, device=matrix.device)
    for column in range(0, matrix.shape[1], WIDTH):
        part = matrix[:, column : column + WIDTH].double()
        for row in range(0, size, HEIGHT):
            gram[row : row + HEIGHT, row:] += part[row : row + HEIGHT] @ part[row:].T
    return gram.triu() + gram.triu(1).T
