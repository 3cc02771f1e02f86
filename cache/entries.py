"""Entries of a store: one file each, which says what it is for, and is checked before it is believed.

JSON alone is a JSON file, with tensors it is a safetensors file with the JSON in its header. Neither can run code.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import FileError
from ..core.tensorfile import DTYPE_NAMES, open_tensors, serialized

FORMAT = 1
JSON, TENSORS = ".json", ".safetensors"


class UnsoundError(Exception):
    """An entry is damaged, or it is not the one that its name says."""


def digest(key: Mapping[str, Any]) -> str:
    """The name of an entry: the SHA-256 of everything that it depends on, whatever the order.

    Raises:
        ValueError: a number of the key is not finite.
    """
    return hashlib.sha256(_canonical(key).encode()).hexdigest()


def json_entry(kind: str, name: str, value: Any) -> bytes:
    """The bytes of an entry without tensors.

    Raises:
        ValueError: a number is not finite.
    """
    text = _canonical(value)
    head = {"format": FORMAT, "kind": kind, "key": name, "checksum": _checksum(text, {})}
    return f'{_canonical(head)[:-1]},"value":{text}}}'.encode()


def tensor_entry(
    kind: str, name: str, value: Any, tensors: Mapping[str, Tensor]
) -> Iterator[bytes | memoryview]:
    """The pieces of an entry with tensors, all of them on the CPU and contiguous.

    Raises:
        ValueError: a number of `value` is not finite.
    """
    text = _canonical(value)
    told = {"format": str(FORMAT), "kind": kind, "key": name, "checksum": _checksum(text, tensors)}
    return serialized(tensors, {**told, "value": text})


def read_json(path: Path, kind: str, name: str) -> Any:
    """The value of an entry without tensors.

    Raises:
        OSError: there is none, or it cannot be read.
        UnsoundError: it is damaged, or another one.
    """
    try:
        found = json.loads(path.read_bytes())
        value = found.pop("value")
        expected = {"format": FORMAT, "kind": kind, "key": name, "checksum": _checksum(_canonical(value), {})}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as problem:
        raise UnsoundError(str(problem)) from None
    if found != expected:
        raise UnsoundError("its content is not what was written")
    return value


def read_tensors(path: Path, kind: str, name: str) -> tuple[Any, dict[str, Tensor]]:
    """The value and the tensors of an entry, read and not mapped: whoever deletes it takes nothing away.

    Raises:
        UnsoundError: it is not there, damaged, or another one.
    """
    try:
        file = open_tensors(path)
        text = file.metadata.get("value", "")
        tensors = {one: file.read(one) for one in file.infos}
        file.release()
        expected = {"format": str(FORMAT), "kind": kind, "key": name, "checksum": _checksum(text, tensors)}
        if dict(file.metadata) != {**expected, "value": text}:
            raise UnsoundError("its content is not what was written")
        return json.loads(text), tensors
    except (FileError, ValueError, RecursionError) as problem:
        raise UnsoundError(str(problem)) from None


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 over the JSON and every tensor: it finds damage, which is all that can be wrong here."""
    check = zlib.crc32(text.encode())
    for name, value in tensors.items():
        check = zlib.crc32(f"{name}\0{DTYPE_NAMES[value.dtype]}\0{tuple(value.shape)}\0".encode(), check)
        if value.numel():
            check = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, check)
    return f"{check:08x}"
