"""What is remembered between runs: entries named by what they depend on, in one folder of a limited size.

An entry is written beside its place, onto the disk, and renamed, so whoever looks finds all of it or nothing; what a
killed process left is removed by the next. Nothing that goes wrong here is an error of the work: it is done without,
and a note says so. Processes may share a folder: what changes it holds a lock, and reading needs none.
"""

import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import FileIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ..core.errors import RecipeError
from ..core.params import unknown
from .entries import (
    FORMAT,
    JSON,
    TENSORS,
    UnsoundError,
    digest,
    json_entry,
    read_json,
    read_tensors,
    tensor_entry,
)
from .lock import locked, try_lock

MODES = ("disabled", "read_only", "auto", "auto_ignore_strength", "clear_and_run")
LIMIT = 4 << 30
FREE = 512 << 20  # bytes of the disk that stay free
FRESH = 2.0  # seconds for which a look at the folder's size holds, for entries of
SMALL = 1 << 20  # at most so many bytes
SLACK = 20  # when room is made, one part in so many more goes
OLD = 86400.0  # seconds after which an unfinished file is a leftover where the file system has no locks
_LOCK, _WRITING = "lock", "writing"
_KIND = re.compile(r"[a-z][a-z_]{0,31}")
_ENTRY = re.compile(r"[0-9a-f]{64}\.(json|safetensors)")
_UNFINISHED = re.compile(r"[0-9a-f]{16}\.tmp")

Read = TypeVar("Read")


class _Found(NamedTuple):
    used: float
    size_bytes: int
    path: Path


class Store:
    """Entries by kind and key. A key holds all that its value depends on.

    Attributes:
        folder: where entries lie; it is made when the first is written. Other files in it are left alone.
        limit_bytes: what all entries may take; those that were used longest ago go first.
        mode: `disabled` touches nothing; `read_only` changes nothing; `auto` reads and writes, and so does
            `auto_ignore_strength`, whose keys are its owner's matter; `clear_and_run` deletes every entry that it is
            asked for, unless it wrote it itself, and writes.
        notes: what went wrong, in sentences, each once.
    """

    def __init__(self, folder: Path | str, limit_bytes: int = LIMIT, mode: str = "auto") -> None:
        if mode not in MODES:
            raise RecipeError(unknown("memory mode", mode, dict.fromkeys(MODES)))
        self.folder = Path(folder).absolute()
        self.limit_bytes = limit_bytes
        self.mode = mode
        self.notes: list[str] = []
        self._root = self.folder / f"v{FORMAT}"
        self._written: set[Path] = set()
        self._used: tuple[float, int] | None = None
        self._is_tidy = False
        self._has_failed = False

    @property
    def is_writing(self) -> bool:
        """Whether anything is written or deleted at all."""
        return self.mode not in ("disabled", "read_only") and not self._has_failed

    def get_json(self, kind: str, key: Mapping[str, Any]) -> Any | None:
        """The value of an entry without tensors; None if there is none, or it is damaged."""
        return self._get(kind, key, JSON, read_json)

    def get_tensors(self, kind: str, key: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]] | None:
        """The value and the tensors of an entry; None if there is none, or it is damaged."""
        return self._get(kind, key, TENSORS, read_tensors)

    def put_json(self, kind: str, key: Mapping[str, Any], value: Any) -> bool:
        """Remember a value of JSON's own kinds, in the place of what was remembered; whether it was.

        Raises:
            ValueError: a number is not finite.
        """
        if not self.is_writing:
            return False
        name = digest(key)
        entry = json_entry(kind, name, value)
        return self._put(self._path(kind, name, JSON), len(entry), [entry])

    def put_tensors(
        self, kind: str, key: Mapping[str, Any], value: Any, tensors: Mapping[str, Tensor]
    ) -> bool:
        """Remember a value of JSON's own kinds with tensors, unless they are; whether they were not.

        Raises:
            ValueError: a number of `value` is not finite.
        """
        if not self.is_writing:
            return False
        name = digest(key)
        path = self._path(kind, name, TENSORS)
        size = sum(value.nbytes for value in tensors.values())
        # A file that somebody may be reading is never replaced by its like.
        if _exists(path) or not self._fits(size):
            return False
        plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        pieces = tensor_entry(kind, name, value, plain)
        head = list(islice(pieces, 2))
        return self._put(path, size + sum(map(len, head)), chain(head, pieces))

    def sizes(self) -> dict[str, tuple[int, int]]:
        """How many entries there are of each kind, and their bytes."""
        found: dict[str, tuple[int, int]] = {}
        if self.mode == "disabled":
            return found
        try:
            for entry in self._entries():
                count, total = found.get(entry.path.parent.name, (0, 0))
                found[entry.path.parent.name] = count + 1, total + entry.size_bytes
        except OSError as problem:
            self.note(f"The memory in `{self.folder}` cannot be read ({_reason(problem)}).")
        return dict(sorted(found.items()))

    def clear(self) -> int:
        """Delete every entry, and nothing else; the bytes that are free now."""
        total = 0
        if not self.is_writing:
            return total
        try:
            if self._root.is_dir():
                with locked(self._root / _LOCK):
                    self._remove_leftovers()
                    for entry in self._entries():
                        entry.path.unlink(missing_ok=True)
                        total += entry.size_bytes
        except OSError as problem:
            self._failed(problem)
        self._used = None
        return total

    def _path(self, kind: str, name: str, suffix: str) -> Path:
        if not _KIND.fullmatch(kind) or kind == _WRITING:
            raise ValueError(f"{kind!r} names no kind of entry")
        return self._root / kind / f"{name}{suffix}"

    def _get(
        self, kind: str, key: Mapping[str, Any], suffix: str, read: Callable[[Path, str, str], Read]
    ) -> Read | None:
        if self.mode == "disabled":
            return None
        name = digest(key)
        path = self._path(kind, name, suffix)
        self._tidy()
        try:
            if not path.exists():
                return None
            if self.mode == "clear_and_run" and path not in self._written:
                self._delete(path)
                return None
            found = read(path, kind, name)
        except UnsoundError as problem:
            if _exists(path):  # else another process made room
                self.note(f"An entry of {kind.replace('_', ' ')} was damaged and is made anew ({problem}).")
                self._delete(path)
            return None
        except OSError as problem:
            self.note(f"The memory in `{self.folder}` cannot be read ({_reason(problem)}); nothing is lost.")
            return None
        if self.is_writing:
            with suppress(OSError):
                os.utime(path)
        return found

    def _delete(self, path: Path) -> None:
        if self.is_writing:
            try:
                path.unlink(missing_ok=True)
            except OSError as problem:
                self._failed(problem)

    def _put(self, path: Path, size_bytes: int, pieces: Iterable[bytes | memoryview]) -> bool:
        if not self._fits(size_bytes):
            return False
        self._tidy()
        beside: Path | None = None
        try:
            for folder in (path.parent, self._root / _WRITING):
                folder.mkdir(parents=True, exist_ok=True)
            with locked(self._root / _LOCK):
                if not self._make_room(size_bytes):
                    return False
                beside = self._root / _WRITING / f"{secrets.token_hex(8)}.tmp"
                stream = FileIO(beside, "x")
                _claim(stream)
                stream.truncate(size_bytes)  # others count it when they make room
            with stream:
                for piece in pieces:
                    _write(stream, piece)
                os.fsync(stream.fileno())
                # Windows renames no open file; the lock keeps others from taking the closed one for a leftover.
                with locked(self._root / _LOCK):
                    if sys.platform == "win32":
                        stream.close()
                    beside.replace(path)
        except OSError as problem:
            self._failed(problem)
            return False
        finally:
            if beside is not None:
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
        self._written.add(path)
        if self._used is not None:
            self._used = self._used[0], self._used[1] + size_bytes
        return True

    def _fits(self, size_bytes: int) -> bool:
        if size_bytes <= self.limit_bytes:
            return True
        self.note(
            f"A result of {size_bytes / 2**20:,.0f} MiB is not remembered: the memory is limited to"
            f" {self.limit_bytes / 2**20:,.0f} MiB."
        )
        return False

    def _make_room(self, size_bytes: int) -> bool:
        """Delete what was used longest ago until there is room for so much; the lock is held."""
        free = shutil.disk_usage(self._root).free - FREE - size_bytes
        now = time.monotonic()
        if self._used is not None and size_bytes <= SMALL and now - self._used[0] < FRESH:
            if free >= 0 and self._used[1] + size_bytes <= self.limit_bytes:
                return True
        entries = sorted(self._entries())
        total = sum(entry.size_bytes for entry in entries) + self._unfinished_bytes()
        allowed = self.limit_bytes - size_bytes
        if total > allowed:
            allowed -= self.limit_bytes // SLACK
        for entry in entries:
            if total <= max(allowed, 0) and free >= 0:
                break
            entry.path.unlink(missing_ok=True)
            total -= entry.size_bytes
            free += entry.size_bytes
        self._used = now, total
        if free < 0:
            self.note(f"Nothing more is remembered: the disk of `{self.folder}` is almost full.")
        return free >= 0

    def _entries(self) -> Iterator[_Found]:
        for kind in _listed(self._root):
            if (
                not _KIND.fullmatch(kind.name)
                or kind.name == _WRITING
                or not kind.is_dir(follow_symlinks=False)
            ):
                continue
            for one in _listed(Path(kind.path)):
                if _ENTRY.fullmatch(one.name):
                    with suppress(FileNotFoundError):
                        told = one.stat(follow_symlinks=False)
                        yield _Found(told.st_mtime, told.st_size, Path(one.path))

    def _unfinished(self) -> Iterator[Path]:
        for one in _listed(self._root / _WRITING):
            if _UNFINISHED.fullmatch(one.name):
                yield Path(one.path)

    def _unfinished_bytes(self) -> int:
        total = 0
        for path in self._unfinished():
            with suppress(OSError):
                total += path.stat().st_size
        return total

    def _tidy(self) -> None:
        """Once, remove what killed processes left."""
        if self._is_tidy or not self.is_writing:
            return
        self._is_tidy = True
        try:
            if any(self._unfinished()):
                with locked(self._root / _LOCK):
                    self._remove_leftovers()
        except OSError as problem:
            self._failed(problem)

    def _remove_leftovers(self) -> None:
        """Remove unfinished files that nobody writes any more; the lock is held."""
        for path in self._unfinished():
            with suppress(OSError):
                if _is_abandoned(path):
                    path.unlink(missing_ok=True)

    def _failed(self, problem: OSError) -> None:
        """After a failure nothing more is written: the next would fail alike, and take its time."""
        self._has_failed = True
        self.note(
            f"The memory in `{self.folder}` cannot be written ({_reason(problem)}); the result is right, and is not"
            " remembered."
        )

    def note(self, text: str) -> None:
        """Add a sentence to the notes, once."""
        if text not in self.notes:
            self.notes.append(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _claim(stream: FileIO) -> None:
    """Show that an unfinished file is being written; on Windows, that it is open is enough."""
    if sys.platform != "win32":
        with suppress(OSError):
            try_lock(stream)


def _is_abandoned(path: Path) -> bool:
    """Whether nobody writes an unfinished file.

    Raises:
        OSError: it is open in another process, on Windows, or it is gone.
    """
    if sys.platform == "win32":
        return True  # what is open cannot be deleted
    with FileIO(path) as stream:
        try:
            return try_lock(stream)
        except OSError:  # no locks here
            return time.time() - path.stat().st_mtime > OLD


def _write(stream: FileIO, piece: bytes | memoryview) -> None:
    rest = memoryview(piece)
    while len(rest):  # one call takes 2 GiB at most
        rest = rest[stream.write(rest) :]


def _reason(problem: OSError) -> str:
    return problem.strerror or str(problem)
