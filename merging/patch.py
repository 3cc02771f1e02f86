"""The result for one target, ready to be applied or saved."""

from dataclasses import dataclass, replace
from math import hypot, isfinite, log2

import torch
from torch import Tensor

from ..core.errors import ProofError, SaveError
from ..core.linalg import product_norm, truncate
from ..lora.target import Target


@dataclass(frozen=True)
class Patch:
    """`delta = up @ down`, to be added to the target at strength 1.

    Attributes:
        target: the target.
        shape: its own.
        up: `(o, r)` in the recipe's dtype.
        down: `(r, i)`, flattened like a delta's.
        error: Frobenius norm of what rounding and truncation took, relative to the planned result.
        kept: how many of the last directions are those of preserved LoRAs.
    """

    target: Target
    shape: tuple[int, ...]
    up: Tensor
    down: Tensor
    error: float
    kept: int = 0

    @property
    def rank(self) -> int:
        """The inner size `r`."""
        return self.down.shape[0]

    @property
    def size_bytes(self) -> int:
        """Memory of the factors."""
        return self.up.nbytes + self.down.nbytes


def shaped(patch: Patch, gain: float, rank: int) -> Patch:
    """A patch times `gain`, of at most `rank` if that is not 0; its error grows by what that takes.

    Raises:
        SaveError: the gain is not a number.
        ProofError: the result is too large for the patch's dtype.
    """
    if not isfinite(gain):
        raise SaveError(f"The gain is {gain}; it must be a number.")
    if gain == 1.0 and not 0 < rank < patch.rank:
        return patch
    up, down, kept, lost = reduced(patch.up.float(), patch.down.float(), patch.kept, rank, 0.0)
    # Half of the gain to each factor, the down's half a power of two: neither runs out of range.
    share = 2.0 ** round(log2(abs(gain)) / 2) if gain else 1.0
    up, down = up * (gain / share), down * share
    cast_up, cast_down, off = rounded(patch.target, up, down, patch.up.dtype, _norm(up, down))
    return replace(patch, up=cast_up, down=cast_down, error=hypot(patch.error, lost) + off, kept=kept)


def reduced(
    up: Tensor, down: Tensor, kept: int, rank: int, tolerance: float
) -> tuple[Tensor, Tensor, int, float]:
    """Factors of a smaller rank. What was preserved stays exactly, if the rank leaves room for more.

    Args:
        up: `(o, r)` float32.
        down: `(r, i)` float32.
        kept: how many of the last directions are preserved.
        rank: at most this rank, 0 for what a weight of this size can have.
        tolerance: the relative error that a smaller rank may cost.

    Returns:
        `up`, `down`, how many of the last directions are still preserved ones, the relative error left.
    """
    limit, blended = min(up.shape[0], down.shape[1]), down.shape[0] - kept
    most = min(rank or limit, limit)
    is_binding = most < min(limit, down.shape[0])
    lost = 0.0
    if 0 < kept < most and blended and (is_binding or tolerance > 0):
        whole, part = product_norm(up, down), product_norm(up[:, :blended], down[:blended])
        share = part / whole if whole > 0 else 1.0
        room = most - kept if is_binding else None
        short_up, short_down, off = truncate(
            up[:, :blended], down[:blended], room, tolerance / share if share > 0 else 0.0
        )
        up, down = torch.cat([short_up, up[:, blended:]], 1), torch.cat([short_down, down[blended:]])
        lost, tolerance = off * share, 0.0
    if tolerance > 0 or most < down.shape[0]:
        up, down, off = truncate(up, down, most, tolerance)
        kept, lost = 0, hypot(lost, off)
    return up, down, kept, lost


def rounded(
    target: Target, up: Tensor, down: Tensor, dtype: torch.dtype, norm: float
) -> tuple[Tensor, Tensor, float]:
    """Factors in a dtype.

    Args:
        target: serves messages.
        up: `(o, r)` float32.
        down: `(r, i)` float32.
        dtype: of the result.
        norm: that of the planned result.

    Returns:
        `up`, `down`, and `‖cast_up @ cast_down − up @ down‖ / norm`, never less than it is.

    Raises:
        ProofError: a value is too large for the dtype.
    """
    cast_up, cast_down = up.to(dtype), down.to(dtype)
    if not isfinite(float(cast_up.abs().amax()) + float(cast_down.abs().amax())):
        raise ProofError(f"The result on {target} is too large for {dtype}; merge with `--dtype float32`.")
    if norm == 0.0 or dtype == up.dtype:
        return cast_up, cast_down, 0.0
    up_off, wide = cast_up.float() - up, cast_down.float()
    down_off = wide - down
    off = _norm(up_off, wide)
    # Powers of two leave the down's digits alone, but for its smallest entries: the bound is all but zero
    # then.
    bound = float(up.norm()) * float(down_off.norm())
    if bound > 0.05 * off:
        off, bound = _norm(torch.cat([up_off, up], 1), torch.cat([wide, down_off])), 0.0
    return cast_up, cast_down, (off + bound) / norm


def _norm(up: Tensor, down: Tensor) -> float:
    energy = ((up.T @ up).double() * (down @ down.T)).sum()
    return float(energy.clamp(min=0).sqrt())
