"""The result for one target, ready to be applied or saved."""

from dataclasses import dataclass, replace
from math import hypot, isfinite, log2

import torch
from torch import Tensor

from ..core.errors import ProofError, SaveError
from ..lora.factors import Delta, LowRank
from ..lora.full import Dense
from ..lora.target import Target
from .combine import rounding_norm, shrunk

LARGEST = torch.finfo(torch.float32).max  # factors may hold what their product, in a loader, does not
LOSSY = 0.01  # of a result; what takes more is told to the user


@dataclass(frozen=True)
class Patch:
    """A delta to be added to its target at strength 1.

    Attributes:
        target: the target.
        delta: in the recipe's dtype, scale 1: low-rank, a Kronecker product, or dense.
        error: Frobenius norm of what rounding and truncation took, relative to the planned result.
        kept: how many of the last directions are those of preserved LoRAs.
        norm: the Frobenius norm of the exact result.
        projections: its dot products with the deltas of the target's entries, where the plan does not tell them.
        rounding: of the error, what the dtype took.
        cut: of the error, what a smaller rank took.
        unshared: of the error, what KnOTS' basis could not hold.
    """

    target: Target
    delta: Delta
    error: float
    kept: int = 0
    norm: float = 0.0
    projections: tuple[float, ...] = ()
    rounding: float = 0.0
    cut: float = 0.0
    unshared: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        """The target's own."""
        return self.delta.shape

    @property
    def rank(self) -> int:
        """The inner size, or the largest rank that a delta without one may have."""
        return self.delta.rank

    @property
    def dtype(self) -> torch.dtype:
        """Of its tensors."""
        # A delta that is not kept says it without being made.
        kept = getattr(self.delta, "dtype", None)
        return kept or next(iter(self.delta.tensors.values())).dtype

    @property
    def size_bytes(self) -> int:
        """Memory of its tensors."""
        if hasattr(self.delta, "make"):
            return 0
        return sum(tensor.nbytes for tensor in self.delta.tensors.values())

    @property
    def up(self) -> Tensor:
        """`(o, r)`, of a low-rank delta."""
        assert isinstance(self.delta, LowRank)
        return self.delta.up

    @property
    def down(self) -> Tensor:
        """`(r, i)`, of a low-rank delta, flattened like it."""
        assert isinstance(self.delta, LowRank)
        return self.delta.down


def shaped(patch: Patch, gain: float, rank: int, *, may_widen: bool = False) -> Patch:
    """A patch times `gain`, of at most `rank` if that is not 0; its error grows by what that takes.

    Args:
        patch: the patch.
        gain: the factor.
        rank: the rank, or 0.
        may_widen: as for `rounded`.

    Raises:
        SaveError: the gain is not a number.
        ProofError: the result is too large for the patch's dtype.
    """
    if not isfinite(gain):
        raise SaveError(f"The gain is {gain}; it must be a number.")
    is_cut = 0 < rank < patch.rank or (rank and not isinstance(patch.delta, LowRank))
    if gain == 1.0 and not is_cut:
        return patch
    delta, kept, lost = shrunk(patch.delta.times(1.0), patch.kept, rank if is_cut else 0)
    delta = _louder(delta, gain)
    norm = rounding_norm(delta, delta.times(0.0))
    made = rounded(patch.target, delta, patch.dtype, norm, may_widen=may_widen)
    return replace(
        made,
        error=hypot(patch.error, lost) + made.error,
        kept=kept,
        rounding=patch.rounding + made.rounding,
        cut=hypot(patch.cut, lost),
        unshared=patch.unshared,
    )


def _louder(delta: Delta, gain: float) -> Delta:
    if not isinstance(delta, LowRank):
        return delta.times(gain)
    # Half of the gain to each factor, the down's half a power of two: neither runs out of range.
    share = 2.0 ** round(log2(abs(gain)) / 2) if gain else 1.0
    return replace(delta, up=delta.up * (gain / share), down=delta.down * share)


def rounded(
    target: Target, delta: Delta, dtype: torch.dtype, norm: float, *, may_widen: bool = False
) -> Patch:
    """A delta in a dtype, as a patch whose error is that of the rounding, relative to `norm`.

    Args:
        target: its target.
        delta: float32.
        dtype: of the patch.
        norm: of the exact result.
        may_widen: keep it in float32 where the dtype would take more than `LOSSY` of it, or cannot hold it.

    Raises:
        ProofError: a value is too large for the dtype.
    """
    cast = delta.to(dtype)
    is_held = isfinite(sum(float(tensor.abs().amax()) for tensor in cast.tensors.values()))
    is_held &= norm <= LARGEST
    is_exact = norm == 0.0 or dtype == torch.float32 or not is_held
    off = 0.0 if is_exact else rounding_norm(delta, cast) / norm
    if may_widen and dtype != torch.float32 and (not is_held or off > LOSSY):
        return rounded(target, delta, torch.float32, norm)
    if not is_held:
        remedy = "lower the strengths"
        if dtype != torch.float32:
            remedy = f"merge in float32 (`--dtype float32`), or {remedy}"
        name = str(dtype).removeprefix("torch.")
        raise ProofError(f"The result on {target} is too large for {name}; {remedy}.")
    return Patch(target, cast, off, norm=norm, rounding=off)


def part_of(patch: Patch, target: Target) -> Patch:
    """The part of a whole weight's patch that `target` names."""
    assert target.part is not None
    return Patch(target, patch.delta.part(target.part), patch.error)


def joined(weight: str, rows: int, patches: list[Patch]) -> Patch:
    """Row parts of one weight as one patch of `rows` rows; exact.

    Low-rank parts become ups in blocks and downs one below the other, so their ranks add up.
    """
    shape = (rows, *patches[0].shape[1:])
    error = max(patch.error for patch in patches)
    if not all(isinstance(patch.delta, LowRank) for patch in patches):
        flat = patches[0].delta.flat()
        matrix = flat.new_zeros(rows, flat.shape[1])
        for patch in patches:
            assert patch.target.part is not None and patch.target.part.axis == 0
            matrix.narrow(0, patch.target.part.start, patch.target.part.length).copy_(patch.delta.flat())
        return Patch(Target(weight), Dense(matrix.to(patches[0].dtype), 1.0, shape), error)
    up = patches[0].up.new_zeros(rows, sum(patch.rank for patch in patches))
    at = 0
    for patch in patches:
        part = patch.target.part
        assert part is not None and part.axis == 0
        up[part.start : part.start + part.length, at : at + patch.rank] = patch.up
        at += patch.rank
    down = torch.cat([patch.down for patch in patches])
    return Patch(Target(weight), LowRank(up, down, 1.0, shape), error)
