"""The result for one target, ready to be applied or saved."""

from dataclasses import dataclass, replace

from torch import Tensor

from ..core.linalg import truncate
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
    """

    target: Target
    shape: tuple[int, ...]
    up: Tensor
    down: Tensor
    error: float

    @property
    def rank(self) -> int:
        """The inner size `r`."""
        return self.down.shape[0]

    @property
    def size_bytes(self) -> int:
        """Memory of the factors."""
        return self.up.nbytes + self.down.nbytes


def shaped(patch: Patch, gain: float, rank: int) -> Patch:
    """A patch times `gain`, of at most `rank` if that is not 0; its error grows by what that takes."""
    up, down, lost = patch.up, patch.down, 0.0
    if 0 < rank < patch.rank:
        up, down, lost = truncate(up.float(), down.float(), rank, 0.0)
        up, down = up.to(patch.up.dtype), down.to(patch.down.dtype)
    if gain != 1.0:
        up = (up.float() * gain).to(up.dtype)
    return replace(patch, up=up, down=down, error=(patch.error**2 + lost**2) ** 0.5)
