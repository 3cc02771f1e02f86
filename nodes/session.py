"""What lives as long as the process: the content hashes of files. Our only module-level state."""

import hashlib
from pathlib import Path

READ_BYTES = 1 << 20

_hashes: dict[str, tuple[tuple[int, int, int], str]] = {}


def content_hash(path: Path) -> str:
    """SHA-256 of a file, read again only when its size, time of change or inode differs from last time.

    Raises:
        OSError: the file cannot be read.
    """
    stat = path.stat()
    stamp = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    known = _hashes.get(str(path))
    if known is not None and known[0] == stamp:
        return known[1]
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
    _hashes[str(path)] = (stamp, digest.hexdigest())
    return digest.hexdigest()
