"""Low-rank linear algebra: a product of thin factors is never multiplied out."""

import torch
from torch import Tensor


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
    energy = values.square()
    total = float(energy.sum())
    if total == 0.0:
        return up[:, :1] * 0, down[:1] * 0, 0.0
    # tail[k] is the energy that is lost when k directions stay.
    tail = torch.cat([energy.flip(0).cumsum(0).flip(0), energy.new_zeros(1)])
    allowed = max(tolerance, 1e-7) ** 2 * total
    keep = max(1, int((tail > allowed).sum()))
    if rank is not None:
        keep = min(keep, rank)
    root = values[:keep].sqrt()
    new_up = (up_basis @ left[:, :keep]) * root
    new_down = root[:, None] * (right[:keep] @ down_basis.T)
    return new_up.to(up.dtype), new_down.to(down.dtype), float((tail[keep] / total).sqrt())
