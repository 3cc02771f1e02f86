"""A private folder for temporary files that no crash leaves behind for long.

Its owner holds a lock of the system's on a file in it. Such a lock ends with its process, however that ends; so
whoever starts next may take the folder of the dead, and never that of the living, whatever ids they have.
"""

import os
import stat
import sys
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

PREFIX = "lora-alloy-diffs-"
LOCK = "lock"
TRIES = 100


class PrivateFolder:
    """A new folder, for this user and this object alone, until `close` or the end of the process.

    Attributes:
        path: where it is.
    """

    def __init__(self, above: Path) -> None:
        """Make the folder, and remove those that dead processes left.

        Args:
            above: in which folder.

        Raises:
            OSError: no folder can be made there.
        """
        remove_leftovers(above)
        self.path, lock = _claimed(above)
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def close(self) -> None:
        """Remove the folder; a second time does nothing."""
        self._remove()


def remove_leftovers(above: Path) -> int:
    """Remove the folders of processes that are no more, and say how many; others' are left alone."""
    count = 0
    with suppress(OSError):
        for folder in sorted(above.glob(PREFIX + "*")):
            with suppress(OSError):
                count += _removed(folder)
    return count


def _claimed(above: Path) -> tuple[Path, BinaryIO]:
    for _ in range(TRIES):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
        # Another process that tidies up may come between any two of these steps: then there is another try.
        with suppress(FileNotFoundError):
            lock = (folder / LOCK).open("xb")
            if _is_locked(lock) and _is_there(lock, folder / LOCK):
                return folder, lock
            lock.close()
    raise OSError(f"{TRIES} folders in {above} were taken away while they were made")


def _removed(folder: Path) -> bool:
    """Whether the folder was a leftover, and is gone."""
    told = folder.lstat()
    if not stat.S_ISDIR(told.st_mode) or (hasattr(os, "getuid") and told.st_uid != os.getuid()):
        return False
    try:
        lock = (folder / LOCK).open("r+b")
    except FileNotFoundError:
        folder.rmdir()  # no lock yet, or no more: only an empty folder goes
        return True
    if not _is_locked(lock):
        lock.close()
        return False
    _remove(folder, lock)
    return not folder.exists()


def _remove(folder: Path, lock: BinaryIO) -> None:
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name != LOCK:
                with suppress(OSError):
                    path.unlink()
    # POSIX removes what is still locked. Windows does not, but keeps what another process has opened.
    if sys.platform == "win32":
        lock.close()
    with suppress(OSError):
        (folder / LOCK).unlink()
    with suppress(OSError):
        folder.rmdir()
    lock.close()


def _is_locked(lock: BinaryIO) -> bool:
    """Whether the lock could be had; it is the open file's, so that two of one process exclude each other, too."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_there(lock: BinaryIO, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    return False
