"""The base model out of files: a checkpoint, a diffusion model alone, or a diffusers folder.

Headers tell which weights there are; values are mapped and read one weight at a time, in float32. fp8 weights are
multiplied by the scale that is stored beside them (`.scale_weight`, or `.weight_scale` as a number or one a row);
other packed weights cannot be read (`spec/comfyui-contract.md` §2.7).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import FileError
from ..core.tensorfile import DTYPES, TensorFile, TensorInfo, open_tensors
from . import keys
from .base_names import Place, places
from .entries import Model
from .formats import lora
from .keys import Family, KeyMap
from .target import TEXT_ENCODERS, Route, Target

COMPONENTS = ("unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3")
_MODEL = "diffusion_model."
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_SCALES = ("scale_weight", "weight_scale")


class _Found(NamedTuple):
    tensors: TensorFile
    info: TensorInfo
    place: Place


@dataclass(frozen=True)
class _Piece:
    """Some rows of a parameter: the tensor that holds them, and how.

    Attributes:
        tensors: the file.
        info: the tensor.
        place: which part of the tensor.
        start: the first row in the parameter.
        swap_halves: whether the tensor has the parameter's row halves the other way round.
    """

    tensors: TensorFile
    info: TensorInfo
    place: Place
    start: int
    swap_halves: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the rows, as the parameter has them."""
        sizes = self.info.shape[::-1] if self.place.is_transposed else self.info.shape
        return sizes if self.place.third is None else (sizes[0] // 3, *sizes[1:])


def open_base(path: Path | str) -> Model:
    """A base model by the headers of its files.

    Args:
        path: a checkpoint, a diffusion model's file, or a folder of diffusers with its `unet` or `transformer`.

    Raises:
        FileError: there is no such file, or it is damaged, or no model.
    """
    path = Path(path)
    found: list[_Found] = []
    for prefix, tensors in _opened(path):
        clip = next((info for name, info in tensors.infos.items() if name.endswith(".ln_final.weight")), None)
        for name, info in tensors.infos.items():
            of = places(prefix + name, clip.shape[0] if clip and clip.shape else 0)
            found += (_Found(tensors, info, place) for place in of if info.shape)
    family = _family(found)
    pieces = _placed(found, family)
    shapes = {name: _whole_shape(parts) for name, parts in pieces.items() if all(map(_is_readable, parts))}
    if not any(name.startswith(_MODEL) for name in shapes):
        raise FileError(f"`{path}` holds no weights of a model; name the model that the LoRAs are for.")
    return Model(
        _known(pieces, family), shapes, True, lambda weight: _read(pieces.get(weight, [])), path.name
    )


def _opened(path: Path) -> list[tuple[str, TensorFile]]:
    """The files of a model, each with what stands before its names in diffusers' spelling."""
    if path.suffix.lower() == ".gguf":
        raise FileError(f"`{path}` is a GGUF model, whose weights are not read here; name it as safetensors.")
    if not path.is_dir():
        tensors = open_tensors(path)
        if sum(lora.split(name) is not None for name in tensors.infos) > len(tensors.infos) / 2:
            raise FileError(f"`{path}` is a LoRA, not a base model; name the model that the LoRAs are for.")
        return [("", tensors)]
    inside = [(f"{name}.", path / name) for name in COMPONENTS if (path / name).is_dir()]
    found = [
        (prefix, open_tensors(file)) for prefix, folder in inside or [("", path)] for file in _weights(folder)
    ]
    if not found:
        raise FileError(
            f"`{path}` holds no safetensors file, nor does a folder `unet` or `transformer` in it; name the model."
        )
    return found


def _weights(folder: Path) -> list[Path]:
    """The files of one model: one file, or all that it is split into."""
    files = sorted(folder.glob("*.safetensors"))
    # A copy in another precision has that in its name, `model.fp16.safetensors`.
    files = [file for file in files if "." not in file.stem] or files
    shards = [file for file in files if _SHARD.search(file.stem)]
    whole = [file for file in files if file not in shards]
    if len(whole) > 1:
        names = ", ".join(f"`{file.name}`" for file in whole[:3])
        raise FileError(f"`{folder}` holds several models, {names}; name one of them.")
    return whole or shards


def _is_readable(one: "_Found | _Piece") -> bool:
    dtype = DTYPES.get(one.info.dtype)
    return dtype is not None and dtype.is_floating_point


def _family(found: Iterable[_Found]) -> Family | None:
    shapes = {
        one.place.module: ((one.info.shape[0], 1), (1, *one.info.shape[1:]))
        for one in found
        if one.place.parameter == "weight" and not _is_text(one.place.module) and _is_readable(one)
    }
    return keys.detect(shapes)


def _placed(found: Iterable[_Found], family: Family | None) -> dict[str, list[_Piece]]:
    """By the name of a target, the pieces of its parameter, in the order of their rows."""
    known = keys.key_map(family) if family else {}
    pieces: dict[str, dict[int, _Piece]] = {}
    for tensors, info, place in found:
        route = keys.resolve(place.module, known) or _own_route(place.module)
        if route is None:
            continue
        name = route.target.weight + ("" if place.parameter == "weight" else f".{place.parameter}")
        start = route.target.part.start if route.target.part else 0
        piece = _Piece(tensors, info, place, start, route.swap_halves)
        pieces.setdefault(name, {}).setdefault(start, piece)
    ordered = {name: [parts[start] for start in sorted(parts)] for name, parts in pieces.items()}
    return {name: parts for name, parts in ordered.items() if _are_whole(parts)}


def _own_route(module: str) -> Route | None:
    if module.startswith((_MODEL, TEXT_ENCODERS)):
        return Route(Target(module))
    bare = module.removeprefix("unet.").removeprefix("transformer.")
    return None if _is_text(module) else Route(Target(_MODEL + bare))


def _is_text(module: str) -> bool:
    return module.startswith("text_encoder")


def _are_whole(parts: Sequence[_Piece]) -> bool:
    if not all(map(_is_readable, parts)):
        return True  # packed: known by name, of no known shape
    ends = [0, *(piece.start + piece.shape[0] for piece in parts)]
    return all(piece.start == end for piece, end in zip(parts, ends, strict=False))


def _whole_shape(parts: Sequence[_Piece]) -> tuple[int, ...]:
    return sum(piece.shape[0] for piece in parts), *parts[0].shape[1:]


def _known(weights: Collection[str], family: Family | None) -> KeyMap:
    """The names of what the files hold, and the family's for text encoders that they do not hold."""
    known: dict[str, Route] = {}
    for weight in weights:
        if weight.startswith(_MODEL):
            known[f"lora_unet_{weight.removeprefix(_MODEL).replace('.', '_')}"] = Route(Target(weight))
        known[weight] = Route(Target(weight))
    held = {_component(weight) for weight in weights}
    for name, route in (keys.key_map(family) if family else {}).items():
        if route.target.weight in weights or _component(route.target.weight) not in held:
            known[name] = route
    return known


def _component(weight: str) -> str:
    return ".".join(weight.split(".")[:2]) if weight.startswith(TEXT_ENCODERS) else _MODEL


def _read(parts: Sequence[_Piece]) -> Tensor | None:
    """A parameter in float32; None if there is none, or it is packed in a way that is not read."""
    read = [_rows(piece) for piece in parts]
    whole = [rows for rows in read if rows is not None]
    if not whole or len(whole) < len(read):
        return None
    return whole[0] if len(whole) == 1 else torch.cat(whole)


def _rows(piece: _Piece) -> Tensor | None:
    scale = _scale(piece) if _is_readable(piece) else None
    if scale is None:
        return None
    values = piece.tensors.read(piece.info.name).float()
    if scale.numel() != 1 or float(scale) != 1.0:
        values = values * scale.reshape(-1, *(1 for _ in values.shape[1:]))
    piece.tensors.release()
    if piece.place.is_transposed:
        values = values.T
    if piece.place.third is not None:
        values = values.chunk(3)[piece.place.third]
    return torch.cat(values.chunk(2)[::-1]) if piece.swap_halves else values


def _scale(piece: _Piece) -> Tensor | None:
    """What the stored values are to be multiplied by: one number, or one a row; None if it is neither."""
    module, _, parameter = piece.info.name.rpartition(".")
    infos = piece.tensors.infos
    if parameter != "weight":
        return torch.ones(1)
    if f"{module}.weight_scale_2" in infos:
        return None
    name = next((f"{module}.{one}" for one in _SCALES if f"{module}.{one}" in infos), None)
    if name is None:
        return torch.ones(1)
    count = prod(infos[name].shape)
    if count not in (1, piece.info.shape[0]) or not DTYPES[infos[name].dtype].is_floating_point:
        return None
    return piece.tensors.read(name).float().flatten()
