"""What lives as long as the process: the content hashes of files. Our only module-level state."""

from pathlib import Path

from ..core.hashing import file_sha256

_hashes: dict[str, tuple[tuple[int, ...], str]] = {}


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
