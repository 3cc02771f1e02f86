"""Replaced weights: `.set_weight` holds what a weight becomes, not what is added to it.

The delta is the replacement less the base weight. ComfyUI puts the replacement in at any strength; here the
strength acts as on everything else, so that 1 gives the same, and 0 nothing (`spec/comfyui-contract.md` §2.4).
"""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from torch import Tensor

from ...core.errors import FileError
from ...core.tensorfile import TensorFile, TensorInfo
from ..full import Dense
from . import values
from .module import Module, Problem

NAME = "replaced weight"

_SUFFIX = ".set_weight"


def split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor, or None if the name is no replacement."""
    return (tensor_name.removesuffix(_SUFFIX), "set") if tensor_name.endswith(_SUFFIX) else None


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The module whose weight is replaced."""
    if "set" not in roles:
        return None
    shape = roles["set"].shape
    if not shape or 0 in shape:
        return Problem(name, f"has a replacement of shape {shape}", is_damage=True)
    taken = MappingProxyType({"set": roles["set"]})
    rank = min(shape[0], prod(shape[1:]))
    return Module(name, NAME, taken, rank, shape, base_reason="a replacement of its weight")


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Dense:
    """The replacement less the base weight, float32.

    Raises:
        FileError: the replacement cannot be read, or has another shape than the base weight.
    """
    assert base is not None and module.shape is not None
    wanted = values.factor(tensors, module.roles["set"]).float()
    if wanted.shape != base.shape:
        raise FileError(
            f"`{module.roles['set'].name}` of `{tensors.path}` has the shape {tuple(wanted.shape)}, the weight that"
            f" it replaces {tuple(base.shape)}. It is for another model; take it out of the stack."
        )
    return Dense((wanted - base).reshape(base.shape[0], -1), module.gain, tuple(base.shape))
