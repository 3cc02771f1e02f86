"""The linear combination of deltas on one target, in the smallest form that is exact."""

from collections.abc import Sequence
from math import hypot

import torch

from ..core.linalg import product_norm, truncate, truncate_dense
from ..lora.factors import Delta, LowRank, stacked
from ..lora.full import Dense, Kron

ROUNDED_ENTRIES = 1 << 18  # that are compared at a time: what a core's cache holds


def combined(
    deltas: Sequence[Delta], coefficients: Sequence[float], rank: int, tolerance: float
) -> tuple[Delta, float]:
    """`Σ coefficient · delta`, float32, scale 1.

    Low-rank deltas stay so; one Kronecker product alone stays one; what has no small form becomes dense, and so does a
    bias or a norm, of whatever rank.

    Args:
        deltas: of one target.
        coefficients: one for each.
        rank: of the result at most, 0 for what it takes.
        tolerance: the relative error a smaller rank may cost, 0 for none.

    Returns:
        The combination, and the relative error of the truncation.
    """
    shape = deltas[0].shape
    if len(shape) < 2:
        # A bias or a norm has one value an output: no factors of it are smaller.
        rank, tolerance = 0, 0.0
    acting = [(delta, factor) for delta, factor in zip(deltas, coefficients, strict=True) if factor != 0.0]
    acting = acting or [(deltas[0], 0.0)]
    thin = [delta for delta, _ in acting if isinstance(delta, LowRank)]
    if len(thin) == len(acting):
        made = LowRank(*stacked(thin, [factor for _, factor in acting]), 1.0, shape)
        delta, _, lost = shrunk(made, 0, rank, tolerance)
        return delta, lost
    if len(acting) == 1 and not rank and not tolerance:
        alone, factor = acting[0]
        if isinstance(alone, Dense) and factor * alone.scale == 1.0 and alone.matrix.dtype == torch.float32:
            return alone, 0.0
        return alone.times(factor), 0.0
    matrix = acting[0][0].flat() * acting[0][1]
    for delta, factor in acting[1:]:
        matrix += delta.flat() * factor
    # Sums that left float32 have no rank; whoever rounds them says so.
    if (not rank and not tolerance) or not bool(torch.isfinite(matrix).all()):
        return Dense(matrix, 1.0, shape), 0.0
    up, down, lost = truncate_dense(matrix, rank or None, tolerance)
    # Even a tolerance may ask for so many directions that the matrix itself is smaller.
    if not rank and up.numel() + down.numel() >= matrix.numel():
        return Dense(matrix, 1.0, shape), 0.0
    return LowRank(up, down, 1.0, shape), lost


def combined_keeping(
    deltas: Sequence[Delta],
    coefficients: Sequence[float],
    is_kept: Sequence[bool],
    rank: int,
    tolerance: float,
) -> tuple[Delta, int, float]:
    """As `combined`; but what is kept stays exactly where a smaller rank is asked for, if that leaves room for it.

    Args:
        deltas: of one target.
        coefficients: one for each.
        is_kept: which of them are preserved.
        rank: of the result at most, 0 for what it takes.
        tolerance: the relative error a smaller rank may cost, 0 for none.

    Returns:
        The combination, how many of its last directions are the kept ones, the relative error of the truncation.
    """
    acting = [one for one in zip(deltas, coefficients, is_kept, strict=True) if one[1] != 0.0]
    blend = [(delta, factor) for delta, factor, kept in acting if not kept]
    thin = [(delta, factor) for delta, factor, kept in acting if kept and isinstance(delta, LowRank)]
    if not blend or not thin or len(blend) + len(thin) < len(acting):
        return _without_kept(deltas, coefficients, rank, tolerance)
    rest, _ = combined([delta for delta, _ in blend], [factor for _, factor in blend], 0, 0.0)
    up, down = stacked([delta for delta, _ in thin], [factor for _, factor in thin])
    top = LowRank(up, down, 1.0, deltas[0].shape)
    if isinstance(rest, LowRank):
        return shrunk(_above(rest, top), top.rank, rank, tolerance)
    if not (tolerance > 0 or rank > top.rank):
        return _without_kept(deltas, coefficients, rank, tolerance)
    part, whole = float(rest.flat().norm()), float((rest.flat() + top.flat()).norm())
    share = part / whole if whole > 0 else 1.0
    low, lost = combined([rest], [1.0], max(rank - top.rank, 0), tolerance / share if share > 0 else 0.0)
    if not isinstance(low, LowRank):
        return _without_kept(deltas, coefficients, rank, tolerance)
    return _above(low, top), top.rank, lost * share


def _without_kept(
    deltas: Sequence[Delta], coefficients: Sequence[float], rank: int, tolerance: float
) -> tuple[Delta, int, float]:
    made, lost = combined(deltas, coefficients, rank, tolerance)
    return made, 0, lost


def _above(rest: LowRank, top: LowRank) -> LowRank:
    return LowRank(torch.cat([rest.up, top.up], 1), torch.cat([rest.down, top.down]), 1.0, rest.shape)


def shrunk(delta: Delta, kept: int, rank: int, tolerance: float = 0.0) -> tuple[Delta, int, float]:
    """A delta of a smaller rank. Its kept directions stay exactly, if the rank leaves room for more than them.

    Args:
        delta: float32, scale 1.
        kept: how many of the last directions are kept.
        rank: at most this rank, 0 for what a weight of this size can have.
        tolerance: the relative error that a smaller rank may cost.

    Returns:
        The delta, how many of its last directions are still the kept ones, the relative error left.
    """
    if not isinstance(delta, LowRank):
        return _without_kept([delta], [1.0], rank, tolerance)
    up, down, limit = delta.up, delta.down, min(delta.up.shape[0], delta.down.shape[1])
    blended, most, lost = delta.rank - kept, min(rank or limit, limit), 0.0
    is_binding = most < min(limit, delta.rank)
    if 0 < kept < most and blended and (is_binding or tolerance > 0):
        whole, part = product_norm(up, down), product_norm(up[:, :blended], down[:blended])
        share = part / whole if whole > 0 else 1.0
        room = most - kept if is_binding else None
        thin_up, thin_down, off = truncate(
            up[:, :blended], down[:blended], room, tolerance / share if share > 0 else 0.0
        )
        up, down = torch.cat([thin_up, up[:, blended:]], 1), torch.cat([thin_down, down[blended:]])
        lost, tolerance = off * share, 0.0
    if tolerance > 0 or most < down.shape[0]:
        up, down, off = truncate(up, down, most, tolerance)
        kept, lost = 0, hypot(lost, off)
    return LowRank(up, down, 1.0, delta.shape), kept, lost


def rounding_norm(exact: Delta, rounded: Delta) -> float:
    """`‖rounded − exact‖` of a delta and the same in another dtype, never less than it is."""
    if isinstance(exact, LowRank) and isinstance(rounded, LowRank):
        return _thin_rounding(exact, rounded)
    if isinstance(exact, Kron) and isinstance(rounded, Kron):
        a, b, a_wide, b_wide = exact.a.double(), exact.b.double(), rounded.a.double(), rounded.b.double()
        # Ã⊗B̃ − A⊗B = (Ã − A)⊗B̃ + A⊗(B̃ − B)
        return float((a_wide - a).norm() * b_wide.norm() + a.norm() * (b_wide - b).norm())
    if isinstance(exact, Dense) and isinstance(rounded, Dense):
        return _dense_rounding(exact, rounded)
    return float((rounded.flat() - exact.flat()).double().norm())


def _dense_rounding(exact: Dense, rounded: Dense) -> float:
    """A few rows at a time: the matrices may be large, and their differences are not needed."""
    energy = 0.0
    step = max(1, ROUNDED_ENTRIES // max(exact.matrix.shape[1], 1))
    for wide, narrow in zip(exact.matrix.split(step), rounded.matrix.split(step), strict=True):
        off = narrow.float().mul_(rounded.scale).sub_(wide.float() * exact.scale)
        energy += float(torch.linalg.vector_norm(off, dtype=torch.float64)) ** 2
    return energy**0.5


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
