"""LoRA (arXiv:2106.09685) in all its spellings, linear and convolution, with LoCon's Tucker mid.

`delta = scale · up @ down`, scale = alpha / rank, 1 without alpha (`spec/comfyui-contract.md` §3.1-3.2). The up may
come with a bias, as PEFT's `lora_bias` makes it: a delta of the layer's own bias, at the same scale. With
`.reshape_weight` it is for a base weight that is filled up with zeros to its own shape, as the control LoRAs of
Flux widen the first layer by the channels of a picture.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ...core.errors import FileError
from ...core.tensorfile import TensorFile, TensorInfo
from ..factors import Delta, LowRank
from ..full import Dense
from . import dora, values
from .module import Module, Problem

NAME = "lora"
WIDER = (
    "For a wider weight than the model's, as control LoRAs are: ComfyUI and a merge fill it up with zeros, and the"
    " model then wants the picture's channels too"
)

_SUFFIXES: dict[str, str] = {
    ".lora_up.weight": "up",
    ".lora_down.weight": "down",
    ".lora_mid.weight": "mid",
    "_lora.up.weight": "up",
    "_lora.down.weight": "down",
    ".lora.up.weight": "up",
    ".lora.down.weight": "down",
    ".lora_linear_layer.up.weight": "up",
    ".lora_linear_layer.down.weight": "down",
    ".lora_B.weight": "up",
    ".lora_A.weight": "down",
    ".lora_B": "up",
    ".lora_A": "down",
    ".alpha": "alpha",
    ".scalar": "scalar",
    **dora.SUFFIXES,
    ".lora_B.bias": "bias",
    ".lora_A.bias": "down bias",
    ".lora_down.bias": "down bias",
    ".reshape_weight": "reshape",
}
# PEFT puts the adapter's name in between: `….lora_A.default.weight`.
_ADAPTER = re.compile(
    r"^(?P<module>.+)\.lora_(?P<side>[AB]|magnitude_vector)\.(?P<adapter>[^.]+)(?P<end>\.weight|\.bias)?$"
)
_ROLES = {"up", "down", "mid", "alpha", "scalar", "reshape", *dora.ROLES}
_BIASES = {"A": "down bias", "B": "bias"}
_SIDES = {"A": "down", "B": "up", "magnitude_vector": "magnitude"}
# XLabs' processors of Flux: the first of a double block is for the image, the second for the text.
_PROCESSOR = re.compile(
    r"^(?P<block>(?:.+\.)?(?:double|single)_blocks\.\d+\.)processor\."
    r"(?P<layer>(?:qkv|proj)_lora[12]?)\.(?P<side>up|down)\.weight$"
)
_PROCESSED = {
    "qkv_lora1": "img_attn.qkv",
    "proj_lora1": "img_attn.proj",
    "qkv_lora2": "txt_attn.qkv",
    "proj_lora2": "txt_attn.proj",
    "qkv_lora": "linear1_qkv",
    "proj_lora": "linear2",
}
_ENDINGS = re.compile("(?:" + "|".join(map(re.escape, sorted(_SUFFIXES, key=len, reverse=True))) + ")$")


def split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor, or None if the name is no spelling of a LoRA."""
    if processor := _PROCESSOR.match(tensor_name):
        return processor["block"] + _PROCESSED[processor["layer"]], processor["side"]
    if ending := _ENDINGS.search(tensor_name):
        return tensor_name[: ending.start()], _SUFFIXES[ending.group()]
    if named := _ADAPTER.match(tensor_name):
        sides = _BIASES if named["end"] == ".bias" else _SIDES
        return (named["module"], sides[named["side"]]) if named["side"] in sides else None
    return None


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The module these tensors make up, what is wrong with them, or None if they are no LoRA."""
    if "up" not in roles and "down" not in roles:
        return _bias(name, roles) if "bias" in roles else None
    if "up" not in roles or "down" not in roles:
        here, gone = ("up", "down") if "up" in roles else ("down", "up")
        return Problem(name, f"has the {here} factor but not the {gone} factor", is_damage=True)
    if "reshape" in roles and any(role in roles for role in dora.ROLES):
        text = "comes with DoRA magnitudes for a wider base weight, and no program says how they meet"
        return Problem(name, text, is_damage=False)
    if "down bias" in roles:
        return Problem(name, "comes with a bias of its down factor, which no loader applies", is_damage=False)
    if "bias" in roles and "alpha" in roles:
        return Problem(
            name, "comes with a bias and an alpha, and no program says how they meet", is_damage=False
        )
    up, down, mid = roles["up"].shape, roles["down"].shape, roles["mid"].shape if "mid" in roles else None
    if problem := _shape_problem(up, down, mid):
        return Problem(name, problem, is_damage=True)
    if problem := values.number_problem(roles):
        return Problem(name, problem, is_damage=True)
    kernel = mid[2:] if mid else down[2:]
    shape = (up[0], down[1], *kernel)
    if problem := dora.problem(name, roles, shape):
        return problem
    is_wider = "reshape" in roles
    if is_wider and roles["reshape"].shape != (len(shape),):
        text = (
            f"is for a base weight whose shape is given by {roles['reshape'].shape} numbers, and has {shape}"
        )
        return Problem(name, text, is_damage=True)
    taken = MappingProxyType({role: info for role, info in roles.items() if role in _ROLES})
    reason, note = dora.reason(roles), WIDER if is_wider else dora.note(roles, up[0])
    return Module(name, NAME, taken, down[0], shape, base_reason=reason, note=note, is_wider=is_wider)


def _bias(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem:
    """What an up's bias makes of the layer's own."""
    shape = roles["bias"].shape
    if len(shape) != 1 or 0 in shape:
        return Problem(name, f"has a bias of shape {shape}", is_damage=True)
    return Module(name, NAME, MappingProxyType({"bias": roles["bias"]}), 1, shape, "bias")


def _shape_problem(up: tuple[int, ...], down: tuple[int, ...], mid: tuple[int, ...] | None) -> str:
    if len(up) < 2 or len(down) < 2:
        return f"has up {up} and down {down}; both must have two axes or more"
    if 0 in (*up, *down):
        return f"has up {up} and down {down}; rank and sizes must not be 0"
    if any(size != 1 for size in up[2:]):
        return f"has an up factor with a kernel, {up}; only the down factor may have one"
    if mid is None:
        return "" if up[1] == down[0] else f"has up {up} and down {down}, of ranks {up[1]} and {down[0]}"
    if len(mid) < 3 or mid[:2] != (up[1], down[0]) or any(size != 1 for size in down[2:]):
        return f"has up {up}, mid {mid} and down {down}, which do not multiply"
    return ""


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Delta:
    """The module's delta in factors, as stored, a mid folded into the down; dense with DoRA's magnitudes.

    A bias is dense.

    Raises:
        FileError: a factor or the scale cannot be read.
    """
    assert module.shape is not None
    if module.parameter == "bias":
        return Dense(values.factor(tensors, module.roles["bias"])[:, None], module.gain, module.shape)
    up, down = (values.factor(tensors, module.roles[role]) for role in ("up", "down"))
    if "mid" in module.roles:
        mid = values.factor(tensors, module.roles["mid"]).float()
        down = torch.einsum("ab...,bi->ai...", mid, down.float().flatten(1))
    if "reshape" in module.roles:
        _refuse_other_shape(module, tensors)
    scale = values.scale(module, tensors, module.rank)
    delta = LowRank(up.flatten(1), down.flatten(1), scale, module.shape)
    return dora.applied(delta, module, tensors, base)


def _refuse_other_shape(module: Module, tensors: TensorFile) -> None:
    told = tuple(tensors.read(module.roles["reshape"].name).tolist())
    if told != module.shape:
        raise FileError(
            f"`{module.name}` of `{tensors.path}` is for a base weight of {told}, and its factors make {module.shape};"
            " the file is damaged. Get it again."
        )
