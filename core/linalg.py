"""Low-rank linear algebra: a product of thin factors is never multiplied out."""

import torch
from torch import Tensor

SMALL = 1024  # up to this size a matrix is decomposed in full
START, EXTRA = 64, 16
STEPS = 4
SMALLEST = 1e-7  # relative errors below are rounding


def product_norm(up: Tensor, down: Tensor) -> float:
    """The Frobenius norm of `up @ down`, exact to rounding even where the terms cancel.

    Args:
        up: `(o, r)` float32 or float64.
        down: `(r, i)`.
    """
    if min(up.shape) == 0 or min(down.shape) == 0:
        return 0.0
    core = _triangle(up) @ _triangle(down.T).T
    return float(torch.linalg.matrix_norm(core.double()))


def _triangle(tall: Tensor) -> Tensor:
    return torch.linalg.qr(tall, mode="r")[1]


def truncate(up: Tensor, down: Tensor, rank: int | None, tolerance: float) -> tuple[Tensor, Tensor, float]:
    """The best approximation of `up @ down` of a given rank or error, by QR and an SVD of the small core.

    Eckart-Young: no other factors of that rank come closer in the Frobenius norm (`design.md` §1.1).

    Args:
        up: `(o, r)`.
        down: `(r, i)`.
        rank: at most this many directions; None for as many as the tolerance asks.
        tolerance: the relative error that may be left, 0 to keep everything that is not rounding.

    Returns:
        `up (o, k)`, `down (k, i)` with the singular values shared between them, and the relative error left.
    """
    up_basis, up_core = torch.linalg.qr(up.double())
    down_basis, down_core = torch.linalg.qr(down.double().T)
    left, values, right = torch.linalg.svd(up_core @ down_core.T, full_matrices=False)
    keep, lost = _kept(values, float(values.square().sum()), rank, tolerance)
    if keep == 0:
        return up[:, :1] * 0, down[:1] * 0, 0.0
    root = values[:keep].sqrt()
    new_up = (up_basis @ left[:, :keep]) * root
    new_down = root[:, None] * (right[:keep] @ down_basis.T)
    return new_up.to(up.dtype), new_down.to(down.dtype), lost


def truncate_dense(matrix: Tensor, rank: int | None, tolerance: float) -> tuple[Tensor, Tensor, float]:
    """Low-rank factors of a matrix, of a given rank or error.

    A small matrix is decomposed in full, which is the optimum. Of a large one the leading space is found by
    subspace iteration (arXiv:0909.4061, algorithm 4.4) from a fixed start, doubled until the tolerance is met;
    the error is that of the factors that come out, not an estimate.

    Args:
        matrix: `(o, i)` float32.
        rank: at most this many directions; None for as many as the tolerance asks.
        tolerance: the relative error that may be left.

    Returns:
        `up (o, k)`, `down (k, i)` and the relative error left.
    """
    total = float(matrix.double().square().sum())
    limit = min(matrix.shape)
    if total == 0.0:
        return matrix[:, :1] * 0, matrix[:1] * 0, 0.0
    size = limit if limit <= SMALL else min(limit, (rank or START) + EXTRA)
    while True:
        if 2 * size >= limit:
            left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        else:
            basis = _leading_space(matrix, size)
            left, values, right = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
            left = basis @ left
        keep, lost = _kept(values, total, rank, tolerance)
        is_met = lost <= max(tolerance, SMALLEST) or (rank is not None and keep == rank)
        if is_met or 2 * size >= limit:
            root = values[:keep].sqrt()
            return left[:, :keep] * root, root[:, None] * right[:keep], lost
        size *= 2


def may_be_thin(matrix: Tensor, rank: int, tolerance: float) -> bool:
    """Whether some rows of a matrix leave it possible that factors of this rank tell all of it to this error.

    Cheap beside a decomposition: rows of a matrix that is so near to a low rank are so near to it, too.

    Args:
        matrix: `(o, i)` float32.
        rank: of the factors.
        tolerance: the relative error allowed.
    """
    height = matrix.shape[0]
    count = min(height, 2 * rank)
    if count <= rank or matrix.shape[1] <= rank:
        return True
    rows = matrix[torch.linspace(0, height - 1, count).long()]
    energies = torch.linalg.eigvalsh((rows @ rows.T).double()).clamp(min=0)
    total = float(energies.sum())
    # Twice the tolerance: some rows may be worse off than all of them are.
    return float(energies[: count - rank].sum()) <= (2 * tolerance) ** 2 * total


def _leading_space(matrix: Tensor, size: int) -> Tensor:
    chance = torch.Generator(matrix.device).manual_seed(size)
    basis = torch.randn(matrix.shape[1], size, generator=chance, dtype=matrix.dtype, device=matrix.device)
    basis = torch.linalg.qr(matrix @ basis)[0]
    for _ in range(STEPS):
        basis = torch.linalg.qr(matrix.T @ basis)[0]
        basis = torch.linalg.qr(matrix @ basis)[0]
    return basis


def _kept(values: Tensor, total: float, rank: int | None, tolerance: float) -> tuple[int, float]:
    """How many singular values stay, and the relative error without the others; `total` is all the energy."""
    if total == 0.0:
        return 0, 0.0
    # tail[k] is the energy that is lost when k directions stay.
    tail = (total - torch.cat([values.new_zeros(1), values.square().cumsum(0)]).double()).clamp(min=0)
    inner = torch.cat([values.double().square().flip(0).cumsum(0).flip(0), tail.new_zeros(1)])
    # Differences of large sums lose the small tails; what was decomposed is added up from its small end.
    tail = inner + tail[-1] if float(tail[-1]) > 1e-12 * total else inner
    keep = max(1, int((tail > max(tolerance, SMALLEST) ** 2 * total).sum()))
    keep = min(keep, len(values)) if rank is None else min(keep, rank, len(values))
    return keep, float((tail[keep] / total).sqrt())
