"""Locks between processes, which the system takes back from those that end, however they end."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

PATIENCE = 10.0  # seconds; a lock is held for as long as a folder is listed
_PAUSE = 0.01


@contextmanager
def locked(path: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of a file, which is made if it is missing; its folder exists.

    Raises:
        OSError: it cannot be made, or somebody else held it all the time.
    """
    with FileIO(path, "a+") as stream:
        end = time.monotonic() + patience
        while not try_lock(stream):
            if time.monotonic() > end:
                raise TimeoutError(f"another process holds it for more than {patience:g} s")
            time.sleep(_PAUSE)
        try:
            yield
        finally:
            with suppress(OSError):
                _unlock(stream)


def try_lock(stream: FileIO) -> bool:
    """Lock an open file, or say that somebody else has.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        _lock(stream)
    except (BlockingIOError, PermissionError):
        return False
    return True


if sys.platform == "win32":
    import msvcrt

    def _lock(stream: FileIO) -> None:
        stream.seek(0)
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)

    def _unlock(stream: FileIO) -> None:
        stream.seek(0)
        msvcrt.locking(stream.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(stream: FileIO) -> None:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(stream: FileIO) -> None:
        fcntl.flock(stream.fileno(), fcntl.LOCK_UN)
