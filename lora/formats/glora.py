"""GLoRA (arXiv:2306.07967): a low-rank change, and a low-rank map of the base weight itself.

`delta = scale · (W @ a1 @ a2 + b1 @ b2)`, scale = alpha / rank, 1 without alpha. LyCORIS once stored the factors
the other way round, `delta = scale · (W @ a2 @ a1 + b2 @ b1)`; which it is shows in their shapes, and ComfyUI
reads both (`spec/comfyui-contract.md` §2.4).
"""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

from ...core.errors import FileError
from ...core.tensorfile import TensorFile, TensorInfo
from ..factors import Delta
from ..full import Dense
from . import dora
from .module import Module, Problem
from .values import factor, number_problem, scale

NAME = "glora"
REASON = "GLoRA's map of the base weight"

_FACTORS = ("a1", "a2", "b1", "b2")


def split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor, or None if the name is none of GLoRA's."""
    for role in (*_FACTORS, "bm"):
        if tensor_name.endswith(f".{role}.weight"):
            return tensor_name.removesuffix(f".{role}.weight"), role
    return None


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The module these tensors make up, what is wrong with them, or None if they are no GLoRA."""
    if not any(role in roles for role in _FACTORS):
        return None
    if gone := [role for role in _FACTORS if role not in roles]:
        return Problem(name, f"lacks the GLoRA factors {', '.join(gone)}", is_damage=True)
    if "bm" in roles:
        return Problem(name, "is a GLoRA with a Tucker core, which no loader applies", is_damage=False)
    shapes = {role: roles[role].shape for role in _FACTORS}
    laid = None if any(len(shape) < 2 or 0 in shape for shape in shapes.values()) else _layout(shapes)
    if laid is None:
        listed = ", ".join(f"{role} {shape}" for role, shape in shapes.items())
        return Problem(name, f"has GLoRA factors that do not multiply: {listed}", is_damage=True)
    if problem := number_problem(roles):
        return Problem(name, problem, is_damage=True)
    rank, shape = laid
    if problem := dora.problem(name, roles, shape):
        return problem
    taken = {
        role: info for role, info in roles.items() if role in (*_FACTORS, "alpha", "scalar", *dora.ROLES)
    }
    reason = " and ".join(filter(None, (REASON, dora.reason(roles))))
    note = dora.note(roles, shape[0])
    return Module(name, NAME, MappingProxyType(taken), rank, shape, base_reason=reason, note=note)


def _layout(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, tuple[int, ...]] | None:
    """The rank and the delta's shape; None if the factors fit neither way."""
    a1, a2, b1, b2 = (shapes[role] for role in _FACTORS)
    found = []
    if any(size != 1 for shape in (a1, a2) for size in shape[2:]):
        return None
    if b2[0] == b1[1] == a1[1] == a2[0] and a1[0] == a2[1] == b2[1] and prod(b1[2:]) == 1:
        found.append((a2[0], (b1[0], *b2[1:])))
    if b2[1] == b1[0] == a1[0] == a2[1] and a1[1] == a2[0] and prod(b2[2:]) == 1:
        found.append((a1[0], (b2[0], *b1[1:])))
    # A square weight's factors fit both ways; the inner size is the smaller one.
    return min(found, default=None)


def _is_old(module: Module) -> bool:
    a1, a2 = module.roles["a1"].shape, module.roles["a2"].shape
    return (a1[0], a2[1]) == (module.rank, module.rank) and a1[1] != module.rank


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Delta:
    """The module's delta on `base`, `(o, *rest)` float32.

    Raises:
        FileError: a factor or the alpha cannot be read, or the base weight has other inputs.
    """
    assert base is not None and module.shape is not None, "GLoRA has a base_reason"
    if base.shape[1] != module.shape[1]:
        raise FileError(
            f"`{module.name}` of `{tensors.path}` maps {module.shape[1]} inputs, and the base weight has"
            f" {base.shape[1]}; it is for another model."
        )
    a1, a2, b1, b2 = (factor(tensors, module.roles[role]).float().flatten(1) for role in _FACTORS)
    if _is_old(module):
        a1, a2, b1, b2 = a2, a1, b2, b1
    mapped = torch.einsum("oi...,ij->oj...", torch.einsum("oi...,ij->oj...", base, a1), a2)
    inner = Dense(mapped.flatten(1) + b1 @ b2, scale(module, tensors, module.rank), module.shape)
    return dora.applied(inner, module, tensors, base)
