"""What the files behind LoRA names hold, as one value for ComfyUI's question whether a node has changed."""

import hashlib
from collections.abc import Iterable

from . import bridge, session
from .lora_names import match


def fingerprint(names: Iterable[str | None]) -> str:
    """A digest of the contents of the named files, in order.

    A file that was merely touched keeps it, one replaced under the same name does not. None is a name that
    another node supplies, so that it is only known when the node runs: then any installed file may be meant,
    and all of them count, by name, size and time.
    """
    listed = bridge.list_loras()
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{_folder(listed) if name is None else _content(name, listed)}\n".encode())
    return digest.hexdigest()


def _content(name: str, listed: list[str]) -> str:
    found = match(name, listed)
    path = None if found is None else bridge.lora_path(found.name)
    return f"missing {name}" if path is None else session.content_hash(path)


def _folder(listed: list[str]) -> str:
    stats = []
    for name in listed:
        path = bridge.lora_path(name)
        if path is not None:
            stat = path.stat()
            stats.append(f"{name} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(stats)
