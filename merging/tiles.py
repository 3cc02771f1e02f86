"""The dense values of one target's deltas, a few rows at a time: no delta is ever whole in memory.

The tiles depend on the target's shape alone, never on free memory, a device or the number of threads: a product of
fewer rows may add up in another order, so this is what makes results the same everywhere (`design.md` §1.1).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ..core.progress import beat
from ..lora.factors import Delta, LowRank
from ..lora.full import Dense

ENTRIES = 1 << 18  # of one delta in a tile: what a core's cache holds beside what is made of it

Walk: TypeAlias = Callable[[], Iterator[Tensor]]
"""Tiles `(n, t, c)` float32, from the first row to the last, made anew at every call; their memory is reused."""


class Tiles:
    """Deltas of one target as row tiles, or as a whole.

    Products are made of the rows of one tile at a time even where the whole is given out, so both hold the same bits.

    Attributes:
        count: how many deltas.
        rows: `o`; 1 for a bias or a norm, whose values stand in one row.
        columns: `i`, a convolution's kernel flattened into it.
        device: where the tiles are made.
    """

    def __init__(
        self, deltas: Sequence[Delta], device: torch.device | str = "cpu", *, is_whole: bool = False
    ) -> None:
        self.device = torch.device(device)
        self._is_whole = is_whole
        self._makers = [_maker(delta, self.device) for delta in deltas]
        shape = deltas[0].shape
        self.count = len(deltas)
        self.is_row = len(shape) == 1
        self.rows = 1 if self.is_row else shape[0]
        self.columns = deltas[0].numel // max(self.rows, 1)

    @property
    def height(self) -> int:
        """The rows of a tile; the last one may have fewer."""
        return max(1, ENTRIES // max(self.columns, 1))

    @property
    def step(self) -> int:
        """The rows that are given out at a time."""
        return max(self.rows, 1) if self._is_whole else self.height

    def starts(self) -> range:
        """The first row of everything that is given out."""
        return range(0, self.rows, self.step)

    def walk(self) -> Iterator[Tensor]:
        """The tiles, `(n, t, c)` float32; the memory of one is reused for the next."""
        space = torch.empty(self.count, min(self.step, self.rows), self.columns, device=self.device)
        for start in self.starts():
            stop = min(start + self.step, self.rows)
            tile = space[:, : stop - start]
            for place, make in enumerate(self._makers):
                for first in range(start, stop, self.height):
                    last = min(first + self.height, stop)
                    make(first, last, tile[place, first - start : last - start])
            yield tile
            beat()


def _maker(delta: Delta, device: torch.device) -> Callable[[int, int, Tensor], object]:
    """What writes some rows of a delta into a tile."""
    if isinstance(delta, LowRank) and len(delta.shape) > 1:
        up, down = delta.up.to(device).float() * delta.scale, delta.down.to(device).float()
        return lambda start, stop, out: torch.mm(up[start:stop], down, out=out)
    shape = delta.shape
    if len(shape) == 1:
        row = delta.flat().to(device).reshape(1, -1)
        return lambda start, stop, out: out.copy_(row)
    if isinstance(delta, Dense):
        matrix, scale = delta.matrix, delta.scale
        if scale == 1.0 and matrix.dtype == torch.float32:
            return lambda start, stop, out: out.copy_(matrix[start:stop])
        return lambda start, stop, out: out.copy_(matrix[start:stop].float() * scale)
    columns = torch.arange(delta.flat_width)
    return lambda start, stop, out: out.copy_(delta.block(torch.arange(start, stop), columns))
