"""What a file's factors say of one target: a delta that is not multiplied out before somebody needs it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.linalg import product_norm
from .full import Dense, Kron
from .shaped import Shaped
from .target import Part


@dataclass(frozen=True)
class LowRank(Shaped):
    """`delta = scale · up @ down`, reshaped to the target.

    Attributes:
        up: `(o, r)`, any float dtype; may be the host's own memory.
        down: `(r, i)`, a convolution's `(r, i, kh, kw)` flattened to `(r, i·kh·kw)`, a Tucker mid folded in.
        scale: alpha / rank, or 1 without alpha.
        shape: the target's own `(o, *rest)`.
    """

    up: Tensor
    down: Tensor
    scale: float
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """The inner size `r`."""
        return self.down.shape[0]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by role."""
        return {"up": self.up, "down": self.down}

    def flat(self) -> Tensor:
        """The delta as `(o, i)` float32."""
        return self.up.float() @ self.down.float() * self.scale

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Some rows and columns of the flat delta, float32."""
        return (self.up[rows].float() @ self.down[:, columns].float()) * self.scale

    def part(self, part: Part) -> "LowRank":
        """The rows or columns of one part of a fused weight; the other factor is shared."""
        if part.axis == 0:
            rows = self.up.narrow(0, part.start, part.length)
            return replace(self, up=rows, shape=(part.length, *self.shape[1:]))
        inner = prod(self.shape[2:])
        columns = self.down.narrow(1, part.start * inner, part.length * inner)
        return replace(self, down=columns, shape=(self.shape[0], part.length, *self.shape[2:]))

    def halves_swapped(self) -> "LowRank":
        """The same delta with its two row halves exchanged."""
        return replace(self, up=torch.cat(self.up.chunk(2)[::-1]))

    def times(self, factor: float) -> "LowRank":
        """The delta times a factor, float32, its scale folded in and shared between the factors."""
        up, down = stacked([self], [factor])
        return LowRank(up, down, 1.0, self.shape)

    def to(self, dtype: torch.dtype) -> "LowRank":
        """The delta in another dtype."""
        return replace(self, up=self.up.to(dtype), down=self.down.to(dtype))


Delta: TypeAlias = LowRank | Kron | Dense


def padded(delta: Delta, shape: tuple[int, ...]) -> Delta:
    """A delta of a wider weight: zeros behind its rows, and behind its columns.

    Args:
        delta: of no more rows and columns than `shape`.
        shape: `(o, i)`; only matrices are padded.
    """
    rows, columns = shape[0] - delta.shape[0], shape[1] - delta.shape[1]
    if isinstance(delta, LowRank):
        return LowRank(pad(delta.up, (0, 0, 0, rows)), pad(delta.down, (0, columns)), delta.scale, shape)
    return Dense(pad(delta.flat(), (0, columns, 0, rows)), 1.0, shape)


def stacked(pieces: Sequence[LowRank], coefficients: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Factors of `Σ coefficient · delta`, exact: `up (o, R)`, `down (R, i)`, float32, `R` the sum of the
    ranks.

    Each piece's factor is shared between its up and its down so that both have entries of a like size, the
    down's share being a power of two: half precision then neither overflows nor runs into subnormal numbers.
    """
    ups, downs = [], []
    for piece, coefficient in zip(pieces, coefficients, strict=True):
        up, down = piece.up.float(), piece.down.float()
        factor = piece.scale * coefficient
        share = _balance(float(up.abs().amax()) * abs(factor), float(down.abs().amax()))
        ups.append(up * (factor / share))
        downs.append(down * share)
    return torch.cat(ups, 1), torch.cat(downs)


def distance(one: Delta, other: Delta) -> tuple[float, float]:
    """`‖one − other‖` and `‖other‖`, exact to rounding even where the two are all but the same."""
    if isinstance(one, LowRank) and isinstance(other, LowRank):
        up = torch.cat([one.up.double() * one.scale, other.up.double() * other.scale], 1)
        down = torch.cat([one.down.double(), -other.down.double()])
        split = one.rank
        return product_norm(up, down), product_norm(up[:, split:], down[split:])
    wide = other.flat().double()
    return float((one.flat().double() - wide).norm()), float(wide.norm())


def _balance(up_size: float, down_size: float) -> float:
    if up_size <= 0.0 or down_size <= 0.0:
        return 1.0
    exponent = torch.tensor(up_size / down_size, dtype=torch.float64).log2().div(2).round()
    return float(exponent.exp2())
