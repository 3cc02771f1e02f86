"""A result that is not kept: its values are made anew whenever they are asked for.

Full-rank results of a large model take a model's worth of memory, and are needed one weight at a time.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..lora.full import Dense
from ..lora.target import Part
from .patch import Patch


class Deferred(Dense):
    """A dense delta whose matrix is worked out at every look at it."""

    def __init__(self, make: Callable[[], Dense], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        object.__setattr__(self, "make", make)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "scale", 1.0)
        object.__setattr__(self, "shape", shape)

    make: Callable[[], Dense]
    dtype: torch.dtype

    @property
    def matrix(self) -> Tensor:  # type: ignore[override]
        """`(o, i)`, made now."""
        return self.make().matrix

    @property
    def rank(self) -> int:
        """The largest rank it may have."""
        return min(self.shape[0], self.numel // self.shape[0])

    def part(self, part: Part) -> Dense:
        """The rows or columns of one part of a fused weight, made now."""
        return self.make().part(part)

    def halves_swapped(self) -> Dense:
        """The same delta with its two row halves exchanged, made now."""
        return self.make().halves_swapped()

    def times(self, factor: float) -> Dense:
        """The delta times a factor, float32, made now."""
        return self.make().times(factor)

    def to(self, dtype: torch.dtype) -> Dense:
        """The delta in another dtype, made now."""
        return self.make().to(dtype)


def deferred(patch: Patch, make: Callable[[], Patch]) -> Patch:
    """The patch, without its values if they are of full rank.

    Args:
        patch: as it was made.
        make: what makes the same patch again.
    """
    if not isinstance(patch.delta, Dense):
        return patch

    def again() -> Dense:
        delta = make().delta
        assert isinstance(delta, Dense)
        return delta

    return replace(patch, delta=Deferred(again, patch.dtype, patch.shape))


def kept(patch: Patch) -> Patch:
    """The patch with its values, made now if they were not kept."""
    return replace(patch, delta=patch.delta.make()) if isinstance(patch.delta, Deferred) else patch
