"""The k-th largest magnitude of matrices that are never whole in memory: exact, in two passes over their tiles.

Without its sign, a float32 is ordered as its bits are when read as an integer. The first pass counts the upper
bits, which tells the narrow bin that holds the answer; the second counts the lower bits of what lies in that bin.
Counts are integers, so no tiling, thread or device changes the result.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

_LOW = 16  # bits that are left to the second pass
_BINS = 1 << (31 - _LOW)
_BLOCK = 1 << 18  # values that are counted at a time on a CPU: with their bins they stay in its cache


def kept_count(count: int, density: float) -> int:
    """How many of `count` entries a density keeps: the nearest number, at least 1."""
    return max(1, round(density * count))


def magnitude_thresholds(tiles: Callable[[], Iterator[Tensor]], count: int, keep: int) -> list[float]:
    """The `keep`-th largest magnitude of each of `n` matrices.

    So many values and no fewer are at or above it; more only where several equal it.

    Args:
        tiles: makes the tiles `(n, t, c)` float32 without NaN, the same at every call.
        count: how many values each matrix has.
        keep: 1 to `count`.

    Raises:
        ValueError: there are not so many values.
    """
    if not 1 <= keep <= count:
        raise ValueError(f"there is no {keep}th largest of {count} values")
    upper = _summed(tiles(), lambda _, bits: torch.bincount(bits >> _LOW, minlength=_BINS))
    if not (upper.sum(1) == count).all():
        raise ValueError(f"the tiles hold {upper.sum(1).tolist()} values, not {count}")
    bins, ranks = zip(*(_place(counts, keep) for counts in upper), strict=True)
    # As intervals of whole bit patterns, so that most values meet a comparison and nothing else.
    starts = [place << _LOW for place in bins]

    def count_lower(matrix: int, bits: Tensor) -> Tensor:
        low = bits - starts[matrix]
        if bits.device.type == "cpu":
            # Without a sign what lies below is large, too; NumPy's masks are ten times as fast as torch's.
            values = low.numpy().view(np.uint32)
            return torch.from_numpy(np.bincount(values[values < 1 << _LOW], minlength=1 << _LOW))
        return torch.bincount(low[(low >= 0) & (low < 1 << _LOW)], minlength=1 << _LOW)

    lower = _summed(tiles(), count_lower)
    rest = [_place(counts, rank)[0] for counts, rank in zip(lower, ranks, strict=True)]
    found = [start + low for start, low in zip(starts, rest, strict=True)]
    return torch.tensor(found, dtype=torch.int32).view(torch.float32).tolist()


def _summed(tiles: Iterator[Tensor], counted: Callable[[int, Tensor], Tensor]) -> Tensor:
    """The counts `(n, bins)` int64 of all tiles, on the CPU."""
    totals: list[Tensor] = []
    for tile in tiles:
        totals = totals or [torch.zeros((), dtype=torch.int64)] * len(tile)
        for matrix, values in enumerate(tile):
            flat = values.reshape(-1)
            for block in flat.split(_BLOCK if flat.device.type == "cpu" else max(1, len(flat))):
                totals[matrix] = totals[matrix] + counted(matrix, block.view(torch.int32) & 0x7FFFFFFF).cpu()
    if not totals:
        raise ValueError("without tiles there is no largest value")
    return torch.stack(totals)


def _place(counts: Tensor, rank: int) -> tuple[int, int]:
    """The bin of the `rank`-th largest value, and its rank within that bin."""
    above = counts.flip(0).cumsum(0)
    passed = int((above < rank).sum())
    return len(counts) - 1 - passed, rank - (int(above[passed - 1]) if passed else 0)
