"""Deltas that are not low-rank: a Kronecker product in its two factors, and a matrix that is simply there."""

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from .shaped import Shaped
from .target import Part


@dataclass(frozen=True)
class Dense(Shaped):
    """A delta whose every value is stored.

    Attributes:
        matrix: `(o, i)`, a convolution's flattened to `(o, i·kh·kw)`; any float dtype, may be a view of a file.
        scale: a factor on all of it.
        shape: the target's own `(o, *rest)`.
    """

    matrix: Tensor
    scale: float
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """The largest rank it may have."""
        return min(self.matrix.shape)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by role."""
        return {"matrix": self.matrix}

    def flat(self) -> Tensor:
        """The delta as `(o, i)` float32."""
        return self.matrix.float() * self.scale

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Some rows and columns of the flat delta, float32."""
        return self.matrix[rows][:, columns].float() * self.scale

    def part(self, part: Part) -> "Dense":
        """The rows or columns of one part of a fused weight."""
        sizes = list(self.shape)
        sizes[part.axis] = part.length
        inner = prod(self.shape[2:]) if part.axis else 1
        narrowed = self.matrix.narrow(part.axis, part.start * inner, part.length * inner)
        return replace(self, matrix=narrowed, shape=tuple(sizes))

    def halves_swapped(self) -> "Dense":
        """The same delta with its two row halves exchanged."""
        return replace(self, matrix=torch.cat(self.matrix.chunk(2)[::-1]))

    def times(self, factor: float) -> "Dense":
        """The delta times a factor, float32, its scale folded in."""
        return Dense(self.flat() * factor, 1.0, self.shape)

    def to(self, dtype: torch.dtype) -> "Dense":
        """The delta in another dtype."""
        return replace(self, matrix=self.matrix.to(dtype))


@dataclass(frozen=True)
class Kron(Shaped):
    """`delta = scale · kron(a, b)`, reshaped to the target (LyCORIS, arXiv:2309.14859).

    Attributes:
        a: `(o1, i1)`.
        b: `(o2, i2)`, a convolution's flattened to `(o2, i2·kh·kw)`.
        scale: a factor on all of it.
        shape: the target's own, `(o1·o2, i1·i2, *kernel)`.
    """

    a: Tensor
    b: Tensor
    scale: float
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """The largest rank it may have."""
        return min(self.a.shape) * min(self.b.shape)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by role."""
        return {"first": self.a, "second": self.b}

    def flat(self) -> Tensor:
        """The delta as `(o, i)` float32."""
        return torch.kron(self.a.float(), self.b.float()) * self.scale

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Some rows and columns of the flat delta, float32."""
        height, width = self.b.shape
        outer = self.a[rows // height][:, columns // width].float()
        return outer * self.b[rows % height][:, columns % width].float() * self.scale

    def part(self, part: Part) -> "Kron | Dense":
        """The rows or columns of one part; still a Kronecker product where the cut falls between its blocks."""
        inner = prod(self.shape[2:]) if part.axis else 1
        step = self.b.shape[part.axis] // inner
        sizes = list(self.shape)
        sizes[part.axis] = part.length
        if part.start % step == 0 and part.length % step == 0:
            a = self.a.narrow(part.axis, part.start // step, part.length // step)
            return replace(self, a=a, shape=tuple(sizes))
        return Dense(self.flat(), 1.0, self.shape).part(part)

    def halves_swapped(self) -> "Kron | Dense":
        """The same delta with its two row halves exchanged."""
        if self.a.shape[0] % 2 == 0:
            return replace(self, a=torch.cat(self.a.chunk(2)[::-1]))
        return Dense(self.flat(), 1.0, self.shape).halves_swapped()

    def times(self, factor: float) -> "Kron":
        """The delta times a factor, float32, its scale folded in."""
        return Kron(self.a.float() * (self.scale * factor), self.b.float(), 1.0, self.shape)

    def to(self, dtype: torch.dtype) -> "Kron":
        """The delta in another dtype."""
        return replace(self, a=self.a.to(dtype), b=self.b.to(dtype))
