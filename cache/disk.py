"""Matrices on the disk, read through the page cache: one file without a name, from a private folder.

A file without a name is gone with its process, even by a kill or a power cut; where the system has such files, the
folder goes as soon as the file is open. The file is written, and never grown by writing into a map, so that a full
disk is an error and not the end of the process.
"""

import errno
import mmap
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .folder import LOCK, PrivateFolder
from .room import free_disk

BLOCK = 1 << 17  # numbers of 64 bits behind one sum


@dataclass(frozen=True)
class _Place:
    begin: int
    size: tuple[int, int]
    sums: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return 4 * prod(self.size)


class DiskStore:
    """Float32 matrices by key, in a file of its own that nobody else can open.

    Attributes:
        folder: the private folder; None where the file does without one.
        size_bytes: what is stored.
    """

    def __init__(self, above: Path, spare_bytes: int) -> None:
        """Make the file.

        Args:
            above: in which folder; what dead processes left there is removed.
            spare_bytes: what must stay free on the disk.

        Raises:
            OSError: no file can be made there.
        """
        folder = PrivateFolder(above)
        self.folder: Path | None = folder.path
        self._above, self._folder, self._spare = above, folder, spare_bytes
        self._places: dict[str, _Place] = {}
        self._end = 0
        self.size_bytes = 0
        try:
            self._stream = tempfile.TemporaryFile(dir=folder.path, buffering=0)
            # Windows, and some disks in a network, show the file as long as it is open.
            if [path.name for path in folder.path.iterdir()] == [LOCK]:
                folder.close()
                self.folder = None
        except BaseException:
            folder.close()
            raise

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def put(self, key: str, size: tuple[int, int], tiles: Iterator[Tensor]) -> None:
        """Store a matrix.

        Args:
            key: what it is asked for by.
            size: `(rows, columns)`.
            tiles: its rows `(t, columns)` float32, in order.

        Raises:
            OSError: it does not fit; nothing of it is left.
        """
        step = mmap.ALLOCATIONGRANULARITY
        begin = -(-self._end // step) * step
        place = _Place(begin, size, ())
        if free_disk(self._above) - place.size_bytes < self._spare:
            raise OSError(errno.ENOSPC, f"less than {self._spare / 1e9:.3g} GB would stay free")
        try:
            self._stream.seek(begin)
            for tile in tiles:
                self._write(tile.contiguous().reshape(-1).view(torch.uint8).numpy().data)
            sums = tuple(_sums(self._mapped(place)))
        except BaseException:
            self._stream.truncate(self._end)
            raise
        self._places[key] = _Place(begin, size, sums)
        self._end = begin + place.size_bytes
        self.size_bytes += place.size_bytes

    def get(self, key: str) -> Tensor | None:
        """A matrix, float32, in pages of the file; None if its bytes are no longer those that were written.

        Raises:
            OSError: it cannot be mapped.
        """
        place = self._places[key]
        # A look behind the end of a file is no error but a signal.
        if self._stream.seek(0, 2) >= place.begin + place.size_bytes:
            matrix = self._mapped(place)
            if tuple(_sums(matrix)) == place.sums:
                return matrix
        del self._places[key]
        return None

    def close(self) -> None:
        """Give back the disk; a matrix that somebody still holds keeps its pages until then."""
        self._places.clear()
        self._stream.close()
        self._folder.close()

    def _write(self, raw: memoryview) -> None:
        while raw:
            raw = raw[self._stream.write(raw) :]

    def _mapped(self, place: _Place) -> Tensor:
        if not place.size_bytes:
            return torch.empty(place.size)
        # A copy on write: whoever writes into it by mistake does not change the file.
        mapped = mmap.mmap(
            self._stream.fileno(), place.size_bytes, access=mmap.ACCESS_COPY, offset=place.begin
        )
        return torch.from_numpy(np.frombuffer(mapped, np.float32)).reshape(place.size)


def _sums(matrix: Tensor) -> list[int]:
    """One sum, modulo 2^64, for every megabyte: at the speed of memory, and no byte changes alone unseen."""
    flat = matrix.reshape(-1)
    even = len(flat) // 2 * 2
    words = flat[:even].view(torch.int64)
    whole = len(words) // BLOCK * BLOCK
    sums = words[:whole].view(-1, BLOCK).sum(1).tolist()
    return [*sums, int(words[whole:].sum()), *flat[even:].view(torch.int32).tolist()]
