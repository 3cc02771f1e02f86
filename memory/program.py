"""The program as part of a key: whatever of it could change a number, down to its own text."""

import hashlib
import os
import time
from functools import lru_cache
from pathlib import Path

import torch

from .. import __version__

_LOADED = time.time()
_ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = ("analysis", "core", "enhance", "lora", "memory", "merging", "sparsify")


@lru_cache(maxsize=1)
def program() -> str:
    """The SHA-256 of the version and of all source files that a result comes from.

    Raises:
        OSError: they cannot be read.
    """
    found = hashlib.sha256(f"{__version__}\0{torch.__version__}\0".encode())
    for path in _sources():
        found.update(f"{path.relative_to(_ROOT).as_posix()}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def is_changed() -> bool:
    """Whether the program was changed on the disk after it was started: it is then not what its files say.

    Raises:
        OSError: they cannot be read.
    """
    stats = (path.stat() for path in _sources())
    # An old time of change may be copied with a file. Windows has the time of its making in its place.
    return any(max(told.st_mtime, told.st_ctime) > _LOADED for told in stats)


def machine(device: torch.device | str) -> list[str]:
    """What rounds: the processor's instructions, or the GPU and how exactly it multiplies."""
    device = torch.device(device)
    if device.type == "cpu":
        return ["cpu", torch.backends.cpu.get_cpu_capability()]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return [device.type, name, torch.get_float32_matmul_precision(), torch.backends.cpu.get_cpu_capability()]


def _sources() -> list[Path]:
    found = []
    for name in _FOLDERS:
        for folder, _, files in os.walk(_ROOT / name):
            found += (Path(folder, file) for file in files if file.endswith((".py", ".txt")))
    return sorted(found)
