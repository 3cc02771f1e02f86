"""A file that is read piece by piece, and must stay the same from the first piece to the last.

It is read, and not mapped: whoever cuts a mapped file off ends every process that looks at it.
"""

import os
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from .errors import FileError


class Stamp(NamedTuple):
    """What tells a file from another one, or from itself after a change."""

    size_bytes: int
    modified_ns: int
    inode: int
    device: int


def file_stamp(stat: os.stat_result) -> Stamp:
    """The stamp of a file, from `os.stat` or `os.fstat`."""
    return Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev)


class SteadyFile:
    """Reads from the file at `path` that had this stamp, and from no other.

    It is opened when it is read, and stays open until `release`.
    """

    def __init__(self, path: Path, stamp: Stamp) -> None:
        self._path = path
        self._stamp = stamp
        self._stream: FileIO | None = None

    def __del__(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def read_into(self, buffer: memoryview, begin: int) -> None:
        """Fill `buffer` with the bytes from `begin` on.

        Raises:
            FileError: the file is gone, or it is not the one it was.
        """
        try:
            stream = self._opened()
            stream.seek(begin)
            done = 0
            while done < len(buffer):  # one call brings 2 GiB at most
                count = stream.readinto(buffer[done:])
                if not count:
                    raise self._changed()
                done += count
        except OSError as problem:
            raise self._lost(problem) from None

    def release(self) -> None:
        """Close the file; it is opened again when it is read.

        Raises:
            FileError: somebody wrote into it meanwhile.
        """
        if self._stream is not None:
            stream, self._stream = self._stream, None
            with stream:
                self._check(stream)

    def check(self) -> None:
        """Look whether the file is still the one it was.

        Raises:
            FileError: it is not, or it is gone.
        """
        try:
            stamp = file_stamp(self._path.stat())
        except OSError as problem:
            raise self._lost(problem) from None
        if stamp != self._stamp:
            raise self._changed()

    def _opened(self) -> FileIO:
        if self._stream is None:
            self._stream = FileIO(self._path)
            self._check(self._stream)
        return self._stream

    def _check(self, stream: FileIO) -> None:
        if file_stamp(os.fstat(stream.fileno())) != self._stamp:
            raise self._changed()

    def _changed(self) -> FileError:
        return FileError(
            f"`{self._path}` changed while it was being read; run again when nobody writes it any more."
        )

    def _lost(self, problem: OSError) -> FileError:
        reason = problem.strerror or str(problem)
        return FileError(
            f"`{self._path}` could not be read to its end ({reason}); check the file, and run again."
        )
