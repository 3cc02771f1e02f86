"""What lives as long as the process: hashes, tuning results, loaded evaluators. Our only module-level state."""

import weakref
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ..autotuner.evaluator import Functions
from ..cache.diffs import DiffCache
from ..cache.places import default_limit
from ..cache.store import Store
from ..core.errors import RecipeError
from ..core.hashing import file_sha256
from ..core.params import unknown

TUNINGS = 8  # that are remembered
MEMORY_MODES = ("disabled", "auto", "auto_ignore_strength", "read_only", "clear_and_run")

_hashes: dict[str, tuple[tuple[int, ...], str]] = {}
_functions = Functions()
_tunings: dict[str, tuple[tuple[weakref.ref[Any], ...], dict[str, Any]]] = {}


def content_hash(path: Path) -> str:
    """SHA-256 of a file, read again only when its size, time of change or inode differs from last time.

    Raises:
        FileError: the file cannot be read.
    """
    try:
        stat = path.stat()
        # The last is set by the system alone: tools that copy a file give the copy the old time of change.
        stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns)
    except OSError:
        return file_sha256(path)  # it says what is wrong
    known = _hashes.get(str(path))
    if known is not None and known[0] == stamp:
        return known[1]
    digest = file_sha256(path)
    _hashes[str(path)] = (stamp, digest)
    return digest


def remember_tuning(key: str, owners: Sequence[Any], data: dict[str, Any]) -> None:
    """Keep a tuning result until the process ends, or newer ones take its place.

    Only the result is kept, and no weight of it: what it asks for is merged again.

    Args:
        key: all that it depends on, but for the base models.
        owners: these, as ComfyUI holds them; they are not kept alive.
        data: TUNER_DATA.
    """
    _tunings.pop(key, None)
    _tunings[key] = tuple(weakref.ref(owner) for owner in owners), deepcopy(data)
    while len(_tunings) > TUNINGS:
        del _tunings[next(iter(_tunings))]


def recall_tuning(key: str, owners: Sequence[Any]) -> dict[str, Any] | None:
    """The tuning result of this key and these very base models; None if there is none."""
    known = _tunings.get(key)
    if known is None or len(known[0]) != len(owners):
        return None
    same = all(ref() is owner for ref, owner in zip(known[0], owners, strict=True))
    return deepcopy(known[1]) if same else None


def functions() -> Functions:
    """Users' evaluators, each loaded once for a state of its file."""
    return _functions


def memory_of(mode: str, folder: Path | None) -> Store | None:
    """Where results outlive the process, by the words of `memory_mode`.

    Args:
        mode: one of `MEMORY_MODES`.
        folder: ComfyUI's own for its user; None remembers nothing.

    Raises:
        RecipeError: there is no such mode.
    """
    if mode not in MEMORY_MODES:
        raise RecipeError(unknown("memory mode", f"{mode!s:.60}", dict.fromkeys(MEMORY_MODES)))
    if mode == "disabled" or folder is None:
        return None
    return Store(folder, default_limit(), mode)


def diff_cache_of(mode: str, ram_share: float, top_n: int) -> DiffCache:
    """What keeps multiplied-out deltas for one sweep: a context.

    Raises:
        RecipeError: there is no such mode.
    """
    return DiffCache(mode, ram_share, readings=3 * top_n)
