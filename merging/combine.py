"""The linear combination of deltas on one target, in the smallest form that is exact."""

from collections.abc import Sequence

import torch

from ..core.linalg import truncate, truncate_dense
from ..lora.factors import Delta, LowRank, stacked
from ..lora.full import Dense, Kron


def combined(
    deltas: Sequence[Delta], coefficients: Sequence[float], rank: int, tolerance: float
) -> tuple[Delta, float]:
    """`Σ coefficient · delta`, float32, scale 1.

    Low-rank deltas stay so; one Kronecker product alone stays one; what has no small form becomes dense.

    Args:
        deltas: of one target.
        coefficients: one for each.
        rank: of the result at most, 0 for what it takes.
        tolerance: the relative error a smaller rank may cost, 0 for none.

    Returns:
        The combination, and the relative error of the truncation.
    """
    shape = deltas[0].shape
    acting = [(delta, factor) for delta, factor in zip(deltas, coefficients, strict=True) if factor != 0.0]
    acting = acting or [(deltas[0], 0.0)]
    thin = [delta for delta, _ in acting if isinstance(delta, LowRank)]
    if len(thin) == len(acting):
        up, down = stacked(thin, [factor for _, factor in acting])
        limit = min(up.shape[0], down.shape[1])
        most = min(rank or limit, limit)
        lost = 0.0
        if tolerance > 0 or most < down.shape[0]:
            up, down, lost = truncate(up, down, most, tolerance)
        return LowRank(up, down, 1.0, shape), lost
    if len(acting) == 1 and isinstance(acting[0][0], Kron) and not rank and not tolerance:
        return acting[0][0].times(acting[0][1]), 0.0
    matrix = acting[0][0].flat() * acting[0][1]
    for delta, factor in acting[1:]:
        matrix += delta.flat() * factor
    if not rank and not tolerance:
        return Dense(matrix, 1.0, shape), 0.0
    up, down, lost = truncate_dense(matrix, rank or None, tolerance)
    # Even a tolerance may ask for so many directions that the matrix itself is smaller.
    if not rank and up.numel() + down.numel() >= matrix.numel():
        return Dense(matrix, 1.0, shape), 0.0
    return LowRank(up, down, 1.0, shape), lost


def rounding_norm(exact: Delta, rounded: Delta) -> float:
    """`‖rounded − exact‖` of a delta and the same in another dtype, never less than it is."""
    if isinstance(exact, LowRank) and isinstance(rounded, LowRank):
        return _thin_rounding(exact, rounded)
    if isinstance(exact, Kron) and isinstance(rounded, Kron):
        a, b, a_wide, b_wide = exact.a.double(), exact.b.double(), rounded.a.double(), rounded.b.double()
        # Ã⊗B̃ − A⊗B = (Ã − A)⊗B̃ + A⊗(B̃ − B)
        return float((a_wide - a).norm() * b_wide.norm() + a.norm() * (b_wide - b).norm())
    return float((rounded.flat() - exact.flat()).double().norm())


def _thin_rounding(exact: LowRank, rounded: LowRank) -> float:
    up, down = exact.up, exact.down
    up_off, wide = rounded.up.float() - up, rounded.down.float()
    down_off = wide - down
    off = thin_norm(up_off, wide)
    # Powers of two leave the down's digits alone, but for its smallest entries: the bound is all but zero then.
    bound = float(up.norm()) * float(down_off.norm())
    if bound > 0.05 * off:
        off, bound = thin_norm(torch.cat([up_off, up], 1), torch.cat([wide, down_off])), 0.0
    return off + bound


def thin_norm(up: torch.Tensor, down: torch.Tensor) -> float:
    """The Frobenius norm of `up @ down` from Gram matrices: fast, for products that do not cancel."""
    energy = ((up.T @ up).double() * (down @ down.T)).sum()
    return float(energy.clamp(min=0).sqrt())
