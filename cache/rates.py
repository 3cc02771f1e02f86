"""What keeping costs, measured where it happens: seconds per byte of making, writing and reading."""

import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

PROBE = 1 << 24  # float32 numbers: 64 MiB, more than processors' own caches hold
PARTS = 16  # that are timed apart: others may take the processor from some of them
ROWS, COLUMNS = 256, 1024  # of a tile


@dataclass(frozen=True)
class Rates:
    """Seconds per byte of a place to keep things.

    Attributes:
        write: to put a byte there, once.
        read: to have it back in a tile, every time.
    """

    write: float
    read: float

    def of(self, make: float, readings: int) -> float:
        """Seconds per byte in all: made once, put there, and read so many times."""
        return make + self.write + readings * self.read


class Clock:
    """Times how long tiles take to be made, while they pass through.

    Attributes:
        rate: seconds per byte, of the fastest run: others had to wait for the processor.
        runs: how many there were, to the end.
    """

    def __init__(self) -> None:
        self.rate, self.runs = inf, 0

    def timed(self, tiles: Iterator[Tensor]) -> Iterator[Tensor]:
        """The tiles of one run, one by one."""
        seconds, size_bytes = 0.0, 0
        while True:
            start = perf_counter()
            tile = next(tiles, None)
            seconds += perf_counter() - start
            if tile is None:
                break
            size_bytes += tile.nbytes
            yield tile
        self.rate, self.runs = min(self.rate, seconds / max(size_bytes, 1)), self.runs + 1


def memory_rates() -> Rates:
    """Of memory, into tiles: of the fastest parts of the probe, as making is timed by its fastest run."""
    tile = torch.ones(ROWS, COLUMNS)
    probe = torch.empty(PROBE // COLUMNS, COLUMNS)
    parts = probe.chunk(PARTS)
    return Rates(
        min(map(_writing, parts)) / parts[0].nbytes,
        min(_reading(part, tile) for part in parts) / parts[0].nbytes,
    )


def disk_rates(folder: Path) -> Rates:
    """Of the disk, as if nothing stayed in memory; where the system cannot be told so, reading is flattered.

    Raises:
        OSError: the folder takes no file of the probe's size.
    """
    tile = torch.ones(ROWS, COLUMNS)
    block = tile.reshape(-1).view(torch.uint8).numpy().data
    with tempfile.TemporaryFile(dir=folder, buffering=0) as stream:
        start = perf_counter()
        for _ in range(PROBE // tile.numel()):
            left = block
            while left:
                left = left[stream.write(left) :]
        os.fsync(stream.fileno())
        write = perf_counter() - start
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapped = mmap.mmap(stream.fileno(), 4 * PROBE, access=mmap.ACCESS_COPY)
        probe = torch.from_numpy(np.frombuffer(mapped, np.float32)).reshape(-1, COLUMNS)
        start = perf_counter()
        probe.view(torch.int64).sum()  # as every entry is checked
        read = perf_counter() - start + _reading(probe, tile)
    return Rates(write / (4 * PROBE), read / (4 * PROBE))


def _writing(probe: Tensor) -> float:
    """Seconds for the first write to all of the probe, new pages included."""
    tile = torch.ones(ROWS, COLUMNS)
    start = perf_counter()
    for part in probe.split(ROWS):
        part.copy_(tile)
    return perf_counter() - start


def _reading(probe: Tensor, tile: Tensor) -> float:
    """Seconds for all of the probe."""
    start = perf_counter()
    for part in probe.split(ROWS):
        tile.copy_(part)
    return perf_counter() - start
