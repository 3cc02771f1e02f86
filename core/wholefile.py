"""Whole files or none: written beside their place, onto the disk, checked, and only then renamed."""

import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from .errors import SaveError

DEEPEST = 100  # folders that may be made for a file


def refuse_place(path: Path) -> None:
    """Find out before any work is done that a file cannot be written.

    Raises:
        SaveError: the place is a folder, is marked read-only, or lies in a folder that takes no files.
    """
    try:
        _refuse(path)
    except OSError as problem:
        raise _unwritable(path, problem) from None
    except ValueError:  # a null, or half a character
        raise SaveError(f"`{path}` is no name that a file can have; choose another one.") from None


def write_whole(
    path: Path, pieces: Iterable[bytes | memoryview], check: Callable[[Path], None] | None = None
) -> None:
    """Write a file in one step: whoever looks sees what stood there before, or all of the new one.

    Args:
        path: where it will stand. Missing folders are made.
        pieces: the bytes, in order.
        check: called with the finished file before it takes its place; what it raises stops the rename.

    Raises:
        SaveError: the place cannot be written; what stood there before still does.
    """
    refuse_place(path)
    # Cut, since a name may fill the 255 bytes that file systems allow.
    beside = path.with_name(f".{path.name[:40]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("xb") as stream:
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        if check is not None:
            check(beside)
        beside.replace(path)
        _sync_folder(path.parent)
    except OSError as problem:
        raise _unwritable(path, problem) from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _refuse(path: Path) -> None:
    if b"\0" in os.fsencode(path):
        raise ValueError("a null in the name")
    if path.is_dir():
        raise SaveError(f"`{path}` is a folder; name a file to write.")
    if path.exists() and not path.is_file():
        raise SaveError(f"`{path}` is a device or a pipe, which a file would replace; name a file to write.")
    # A rename replaces read-only files too, and so does the superuser: the mark itself is what counts.
    if path.exists() and not (os.access(path, os.W_OK) and path.stat().st_mode & stat.S_IWRITE):
        raise SaveError(f"`{path}` is read-only; choose another name or make it writable.")
    above = list(path.absolute().parents)
    depth = next(depth for depth, folder in enumerate(above) if folder.exists())
    if depth > DEEPEST:
        raise SaveError(f"`{path}` lies below {depth} folders that do not exist; choose another place.")
    folder = above[depth]
    if not folder.is_dir():
        raise SaveError(f"`{folder}` is a file, so nothing can be written below it; choose another place.")
    if not os.access(folder, os.W_OK):
        raise SaveError(f"The folder `{folder}` is read-only; choose another place for `{path.name}`.")


def _unwritable(path: Path, problem: OSError) -> SaveError:
    reason = problem.strerror or str(problem)
    return SaveError(
        f"`{path}` cannot be written ({reason}); nothing was changed there. Choose another place or free some"
        " space."
    )


def _sync_folder(folder: Path) -> None:
    # Windows cannot open folders; there the rename itself is the guarantee.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
