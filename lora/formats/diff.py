"""Full differences: a weight's, a bias's or a norm's change, stored whole (`spec/comfyui-contract.md` §3.1).

ComfyUI reads `.diff` and `.w_norm` for a weight, `.diff_b` and `.b_norm` for a bias; where a module has factors and
a difference of its weight, the difference counts and the factors do not.
"""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from torch import Tensor

from ...core.tensorfile import TensorFile, TensorInfo
from ..full import Dense
from . import values
from .module import Module, Problem

NAME = "diff"

_SUFFIXES = {".diff": "diff", ".diff_b": "diff_b", ".w_norm": "diff", ".b_norm": "diff_b"}


def split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor, or None if the name is no difference."""
    for suffix, role in _SUFFIXES.items():
        if tensor_name.endswith(suffix):
            return tensor_name.removesuffix(suffix), role
    return None


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The weight's difference first; the bias's is offered again once that is taken."""
    for role, parameter in (("diff", "weight"), ("diff_b", "bias")):
        if role not in roles:
            continue
        shape = roles[role].shape
        if not shape or 0 in shape:
            return Problem(name, f"has a difference of shape {shape}", is_damage=True)
        taken = MappingProxyType({role: roles[role]})
        return Module(name, NAME, taken, min(shape[0], prod(shape[1:])), shape, parameter)
    return None


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Dense:
    """The difference as it is stored.

    Raises:
        FileError: it holds no floating-point numbers.
    """
    (info,) = module.roles.values()
    matrix = values.factor(tensors, info)
    return Dense(matrix.reshape(matrix.shape[0], -1), 1.0, info.shape)
