"""How much is free: memory and disk, as the system says it, without any library."""

import ctypes
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def free_memory() -> int | None:
    """Bytes that may be taken without driving others out; a container's own limit counts. None if nobody knows."""
    known = [free for free in (_system(), _container()) if free is not None]
    return min(known) if known else None


def free_disk(folder: Path) -> int:
    """Bytes that may be written in a folder.

    Raises:
        OSError: there is no such folder.
    """
    return shutil.disk_usage(folder).free


def is_in_memory(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether a folder's files take memory, not disk, as those of `/tmp` do on some systems."""
    where = os.path.realpath(folder)
    best, kind = "", ""
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, found, *_ = [*line.split(" "), "", "", ""]
            point = point.replace("\\040", " ")
            is_above = where == point or where.startswith(point.rstrip("/") + "/")
            # Of two on one point the later hides the earlier.
            if is_above and len(point) >= len(best):
                best, kind = point, found
    return kind in IN_MEMORY


def temporary_folder() -> Path:
    """The system's folder for temporary files; the one for large ones, where the first takes memory."""
    usual, large = Path(tempfile.gettempdir()), Path("/var/tmp")
    is_better = large.is_dir() and os.access(large, os.W_OK) and not is_in_memory(large)
    return large if is_in_memory(usual) and is_better else usual


def _system() -> int | None:
    if sys.platform == "win32":
        return _windows()
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _container(root: Path = CGROUP) -> int | None:
    """What is left of a container's limit, its page cache counted as free; None without a limit."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):
            most, taken = (int((root / name).read_text(encoding="ascii")) for name in (limit, used))
            lines = (root / used).with_name("memory.stat").read_text(encoding="ascii").splitlines()
            stat = dict(line.split(maxsplit=1) for line in lines)
            return max(0, most - taken + int(stat.get(cached, "0")))
    return None


def _windows() -> int | None:
    """`MEMORYSTATUSEX.ullAvailPhys`: two 32-bit numbers, then total and free memory of the machine, 64 bits each."""
    state = (ctypes.c_uint64 * 8)()
    words = ctypes.cast(state, ctypes.POINTER(ctypes.c_uint32))
    words[0] = ctypes.sizeof(state)
    library = getattr(ctypes, "windll", None)
    if library is None or not library.kernel32.GlobalMemoryStatusEx(ctypes.byref(state)):
        return None
    return int(state[2])
