"""Content hashes: a file is what its bytes are, whatever it is called and whenever it was touched."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .errors import FileError


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, 64 hexadecimal digits: the hash that model sites show.

    Raises:
        FileError: the file cannot be read.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    try:
        with path.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                digest.update(buffer[:count])
    except OSError as problem:
        raise FileError(f"`{path}` cannot be read ({problem.strerror}); check its permissions.") from None
    return digest.hexdigest()


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of named tensors in memory: names, dtypes, shapes and values, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        if value.numel():
            digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
