"""The k-th largest magnitude of a matrix that is never whole in memory, exactly.

The bits of non-negative float32 numbers are ordered as the numbers are. One pass counts their upper halves, another
the lower halves of those in the one bin that holds the answer; no sorting, and the result depends on no tiling.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_LOW = 15  # bits of the second pass; the sign bit is 0
_BINS = 1 << (31 - _LOW)


def magnitude_thresholds(walk: Callable[[], Iterator[Tensor]], count: int, keep: int) -> list[float]:
    """For each of `n` matrices the `keep`-th largest magnitude.

    Args:
        walk: makes the tiles `(n, t, c)` float32, finite, at every call the same.
        count: the number of values of each matrix.
        keep: how many values are at or above the threshold, ties apart; 1 to `count`.
    """
    high: Tensor | None = None
    for tile in walk():
        counts = torch.stack([_counted(_bits(one) >> _LOW, _BINS) for one in tile])
        high = counts if high is None else high + counts
    assert high is not None, "a matrix without tiles has no threshold"
    below = count - keep  # so many values are smaller
    bins = [int((row.cumsum(0) > below).to(torch.int8).argmax()) for row in high]
    rest = [below - int(row[:place].sum()) for row, place in zip(high, bins, strict=True)]
    low: Tensor | None = None
    for tile in walk():
        parts = []
        for one, place in zip(tile, bins, strict=True):
            bits = _bits(one)
            parts.append(_counted(bits[(bits >> _LOW) == place] & ((1 << _LOW) - 1), 1 << _LOW))
        low = torch.stack(parts) if low is None else low + torch.stack(parts)
    assert low is not None
    found = []
    for row, place, left in zip(low, bins, rest, strict=True):
        bits = (place << _LOW) + int((row.cumsum(0) > left).to(torch.int8).argmax())
        found.append(float(torch.tensor(bits, dtype=torch.int32).view(torch.float32)))
    return found


def _bits(values: Tensor) -> Tensor:
    return values.abs().reshape(-1).view(torch.int32)


def _counted(bins: Tensor, size: int) -> Tensor:
    return torch.bincount(bins, minlength=size).cpu()
