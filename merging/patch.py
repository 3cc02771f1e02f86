"""The result for one target, ready to be applied or saved."""

from dataclasses import dataclass

from torch import Tensor

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
