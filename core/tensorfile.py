"""Tensor files: safetensors through its header and lazily, old PyTorch files with weights only.

A reader opens the header, checks it against the file's size, and reads tensors when they are asked for. The
writer puts a file beside its place, makes sure it is on the disk, and renames it at the end: whatever stood
there before stays until then. Format: safetensors, `spec/comfyui-contract.md` §3.5-3.6.
"""

import errno
import json
import os
import pickle
import re
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import torch
from torch import Tensor

from .errors import FileError
from .filekinds import PICKLED, gone, is_safetensors, refuse_other_kinds, refuse_text
from .progress import Progress, silent, told
from .steadyfile import Stamp, SteadyFile, file_stamp
from .wholefile import write_whole

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }
)
DTYPE_NAMES: Mapping[torch.dtype, str] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})
HEADER_LIMIT = 100_000_000
EMBEDDING = "string_to_param"  # where a textual inversion has its vectors
NESTING = 4  # dictionaries around the tensors of an old PyTorch file
# What torch's own unpickler lets out on damaged files, next to what it means to say.
UNREADABLE = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    struct.error,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    TypeError,
    ImportError,
    BufferError,
    MemoryError,
)


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor. `begin` and `end` count bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile:
    """A mapping of tensor names to what the header says of them; `read` brings the values.

    Attributes:
        path: where the file lies.
        metadata: the header's `__metadata__`, strings only.
        size_bytes: of the whole file.
        release: closes the file, and raises a `FileError` if somebody wrote into it; reading opens it again.
    """

    def __init__(
        self,
        path: Path,
        infos: Mapping[str, TensorInfo],
        metadata: Mapping[str, str],
        size_bytes: int,
        fetch: Callable[[TensorInfo], Tensor],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.infos = MappingProxyType(dict(infos))
        self.metadata = MappingProxyType(dict(metadata))
        self.size_bytes = size_bytes
        self._fetch = fetch
        self.release = release

    def read(self, name: str) -> Tensor:
        """The values of one tensor, as stored. They may be the host's own: never write into them.

        Raises:
            FileError: the values are of a dtype that cannot be read, or the file is not the one it was.
        """
        return self._fetch(self.infos[name])


def open_tensors(path: Path) -> TensorFile:
    """Open a tensor file: `.safetensors` by its header, `.pt .pth .ckpt .bin` with weights only.

    Raises:
        FileError: there is no such file, or it is damaged, or not a tensor file at all, or holds code.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise FileError(f"`{path}` {gone(path)}") from None
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise FileError(f"`{path}` is a link that leads back to itself; name the file.") from None
        raise FileError(f"`{path}` cannot be opened ({problem.strerror}); check its permissions.") from None
    except ValueError:  # a null, or half a character
        raise FileError(f"`{path}` is no name that a file can have; check it.") from None
    if not stat.S_ISREG(mode):
        what = "a folder; name a file in it" if stat.S_ISDIR(mode) else "a device or a pipe; name a file"
        raise FileError(f"`{path}` is {what}.")
    try:
        with path.open("rb") as stream:
            stamp = file_stamp(os.fstat(stream.fileno()))
            head = stream.read(512)
            refuse_text(path, head, stamp.size_bytes)
            if path.suffix.lower() not in PICKLED or is_safetensors(head, stamp.size_bytes):
                return _open_safetensors(path, stream, head, stamp)
        return _open_pickled(path, stamp)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise FileError(f"`{path}` cannot be read ({reason}); check its permissions and its disk.") from None


def _open_safetensors(path: Path, stream: BinaryIO, head: bytes, stamp: Stamp) -> TensorFile:
    refuse_other_kinds(path, head, stamp.size_bytes)
    header_bytes = int.from_bytes(head[:8], "little")
    if HEADER_LIMIT < header_bytes <= stamp.size_bytes - 8:
        raise FileError(
            f"`{path}` has a header of {header_bytes:,} bytes, where safetensors files may have {HEADER_LIMIT:,}; it is"
            " no LoRA that any loader opens. Get another version of it."
        )
    if header_bytes > stamp.size_bytes - 8:
        raise FileError(
            f"`{path}` announces a header of {header_bytes:,} bytes but has {stamp.size_bytes:,} in all; it is"
            " cut off or not a safetensors file. Download it again."
        )
    stream.seek(8)
    infos, metadata = _parse_header(path, stream.read(header_bytes), stamp.size_bytes)
    source = SteadyFile(path, stamp)

    def fetch(info: TensorInfo) -> Tensor:
        return _values(path, source, info)

    return TensorFile(path, infos, metadata, stamp.size_bytes, fetch, source.release)


def _values(path: Path, source: SteadyFile, info: TensorInfo) -> Tensor:
    dtype = DTYPES.get(info.dtype)
    if dtype is None:
        raise FileError(
            f"`{info.name}` of `{path}` is stored as {info.dtype}, which cannot be read here; get the file in"
            " another precision."
        )
    values = torch.empty(prod(info.shape), dtype=dtype)
    if values.numel():
        source.read_into(values.view(torch.uint8).numpy().data, info.begin)
    return values.reshape(info.shape)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in the header")
    return found


def _parse_header(path: Path, raw: bytes, size_bytes: int) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
        if not isinstance(header, dict):
            raise ValueError("the header is not an object")
        metadata = header.pop("__metadata__", None) or {}
        if not isinstance(metadata, dict):
            raise ValueError("the metadata are not an object")
        base = 8 + len(raw)
        infos = {name: _tensor_info(name, entry, base, size_bytes) for name, entry in header.items()}
        _refuse_overlaps(infos)
        "\n".join(infos).encode()  # half a character, as escapes may spell it, is a ValueError
    except RecursionError:
        raise FileError(
            f"`{path}` has a header nested beyond reason; it is not a safetensors file."
        ) from None
    except (ValueError, TypeError, KeyError) as problem:
        raise FileError(
            f"`{path}` is not a sound safetensors file: {problem}. It is damaged or of another kind; get it"
            " again."
        ) from None
    return infos, {key: value for key, value in metadata.items() if isinstance(value, str)}


def _tensor_info(name: str, entry: dict[str, object], base: int, size_bytes: int) -> TensorInfo:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise ValueError(f"`{name[:80]}` lacks dtype, shape or offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"`{name[:80]}` has the shape {shape!r:.60}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(at) is int for at in offsets):
        raise ValueError(f"`{name[:80]}` has the offsets {offsets!r:.60}")
    begin, end = offsets
    dtype = str(entry["dtype"])
    if not 0 <= begin <= end:
        raise ValueError(f"`{name[:80]}` ends before it begins")
    if base + end > size_bytes:
        raise ValueError(f"`{name[:80]}` ends {base + end - size_bytes:,} bytes behind the end of the file")
    if dtype in DTYPES and prod(shape) * DTYPES[dtype].itemsize != end - begin:
        raise ValueError(f"`{name[:80]}` of shape {tuple(shape)} does not fill its {end - begin:,} bytes")
    return TensorInfo(name, dtype, tuple(shape), base + begin, base + end)


def _refuse_overlaps(infos: Mapping[str, TensorInfo]) -> None:
    filled = sorted((info for info in infos.values() if info.end > info.begin), key=lambda info: info.begin)
    for one, other in zip(filled, filled[1:], strict=False):
        if other.begin < one.end:
            raise ValueError(f"`{one.name[:80]}` and `{other.name[:80]}` overlap")


def _open_pickled(path: Path, stamp: Stamp) -> TensorFile:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except UNREADABLE as problem:
        # Of torch's own text only the name is fit to be passed on: the rest tells how to run the code.
        named = re.search(r"GLOBAL ([\w.]{1,80})", str(problem))
        what = (
            f"names `{named[1]}`, which is no tensor" if named else "holds more than tensors, or is damaged"
        )
        raise FileError(
            f"`{path}` {what}; it is not opened, since that could run code. Use a `.safetensors` version of"
            " it."
        ) from None
    for _ in range(NESTING):
        loaded = _unwrapped(loaded)
    if not isinstance(loaded, dict):
        raise FileError(f"`{path}` holds a {type(loaded).__name__}, not named tensors; use a LoRA file.")
    tensors = {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}
    if not tensors and any(map(_has_tensors, loaded.values())):
        inner = ", ".join(f"`{str(name)[:40]}`" for name, value in loaded.items() if _has_tensors(value))
        raise FileError(
            f"`{path}` holds several sets of tensors, {inner}, and does not say which of them is the LoRA. Save that"
            " one as a `.safetensors` file, and use it."
        )
    return tensors_in_memory(path, tensors, {}, stamp.size_bytes, SteadyFile(path, stamp).check)


def _unwrapped(loaded: object) -> object:
    """What training scripts wrap up with their counters and settings; itself where there are tensors already."""
    if not isinstance(loaded, dict):
        return loaded
    if isinstance(state := loaded.get("state_dict"), dict):
        return state
    if _has_tensors(loaded):
        return loaded
    inner = [(name, value) for name, value in loaded.items() if isinstance(value, dict)]
    inner = [pair for pair in inner if _has_tensors(pair[1])] or inner
    if len(inner) != 1:
        return loaded
    name, found = inner[0]
    # What an embedding holds is named by its token, which tells nobody what it is.
    return {f"{EMBEDDING}.{token}": value for token, value in found.items()} if name == EMBEDDING else found


def _has_tensors(value: object) -> bool:
    return isinstance(value, dict) and any(isinstance(one, Tensor) for one in value.values())


def tensors_in_memory(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    size_bytes: int = 0,
    release: Callable[[], None] = lambda: None,
) -> TensorFile:
    """Tensors that are loaded already, behind the same face as a file; `path` serves messages only.

    Raises:
        FileError: something among them is no plain tensor with a name.
    """
    for name, value in tensors.items():
        if not _is_name(name) or not _is_plain(value):
            raise FileError(
                f"{str(name)[:80]!r} of `{path}` is no plain tensor with a name: it is sparse, quantised, without"
                " values, or no tensor at all. Save the LoRA as a `.safetensors` file, and use that."
            )
    infos = {
        name: TensorInfo(
            name, DTYPE_NAMES.get(value.dtype, str(value.dtype)), tuple(value.shape), 0, value.nbytes
        )
        for name, value in tensors.items()
    }
    # Whoever hands them over may hold them on a GPU, or train them.
    kept = {name: value.detach() for name, value in tensors.items()}
    return TensorFile(path, infos, metadata, size_bytes, lambda info: kept[info.name].cpu(), release)


def _is_name(name: object) -> bool:
    """Whether a name is text; half a character, as pickles may hold, is none."""
    return isinstance(name, str) and name.encode("utf-8", "replace").decode() == name


def _is_plain(value: object) -> bool:
    """Whether a tensor has its values in memory, one for each entry, as numbers."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    if value.is_meta or value.is_nested or value.is_quantized:
        return False
    # A view that repeats its memory may claim more than any memory holds.
    return value.nbytes <= value.untyped_storage().nbytes()


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    check: Callable[[Path], None] | None = None,
    progress: Progress = silent,
) -> None:
    """Write a safetensors file: beside its place, onto the disk, checked, and only then renamed.

    Args:
        path: where it will stand. Missing folders are made.
        tensors: in the order they will stand; contiguous memory is not required.
        metadata: strings for the header.
        check: called with the finished file before it takes its place; what it raises stops the rename.
        progress: told after every tensor; what it raises stops the rename, too.

    Raises:
        SaveError: the place cannot be written; what stood there before still does.
    """
    write_whole(path, serialized(tensors, metadata, progress), check)


def serialized(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], progress: Progress = silent
) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, piece by piece, none of them copied before it is asked for."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, value in tensors.items():
        begin, end = end, end + value.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [begin, end],
        }
    # Half a surrogate pair, from a name or another header cut off in an emoji, is no Unicode: a question
    # mark.
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    raw += b" " * (-len(raw) % 8)
    yield len(raw).to_bytes(8, "little")
    yield raw
    for value in told(tensors.values(), len(tensors), "write", progress):
        flat = value.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            yield flat.view(torch.uint8).numpy().data
