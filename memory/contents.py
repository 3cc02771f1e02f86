"""Remembered content hashes: a file is read whole once, and again when it could have changed.

A file is known by its size, its times and its place on the disk. The time of the last change of its record (`ctime`) is
set by the system alone, so that a file put in the place of another under its name, size and time is still another.
"""

import time
from pathlib import Path
from typing import Any

from ..cache.store import Store
from ..core.hashing import file_sha256

CONTENT = "content"
SETTLED = 3.0  # seconds: what was changed so lately may change again within one tick of a file system's clock


def content_hash(store: Store, path: Path) -> str:
    """The SHA-256 of a file's bytes.

    Raises:
        FileError: the file cannot be read.
    """
    key = _stamp(path)
    if key is None:
        return file_sha256(path)  # it says what is wrong
    known = store.get_json(CONTENT, key)
    if isinstance(known, str) and len(known) == 64:
        return known
    began = time.time()
    digest = file_sha256(path)
    changed = max(key["modified_ns"], key["recorded_ns"]) / 1e9
    if _stamp(path) == key and changed < began - SETTLED:
        store.put_json(CONTENT, key, digest)
    return digest


def _stamp(path: Path) -> dict[str, Any] | None:
    try:
        told = path.stat()
    except (OSError, ValueError):
        return None
    return {
        "size_bytes": told.st_size,
        "modified_ns": told.st_mtime_ns,
        "recorded_ns": told.st_ctime_ns,
        "inode": told.st_ino,
        "device": told.st_dev,
    }
