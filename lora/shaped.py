"""What every kind of delta has by its shape alone."""

from math import prod

from torch import Tensor


class Shaped:
    """A delta with its target's own shape, `(o, *rest)`."""

    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """The number of its values."""
        return prod(self.shape)

    @property
    def flat_width(self) -> int:
        """The columns of the flat delta."""
        return prod(self.shape[1:])

    def flat(self) -> Tensor:
        """The delta as `(o, i)` float32."""
        raise NotImplementedError

    def dense(self) -> Tensor:
        """The delta itself, `shape`, float32."""
        return self.flat().reshape(self.shape)
