"""LoHa (arXiv:2108.06098, as LyCORIS stores it): the element-wise product of two low-rank matrices.

`delta = scale · (w1_a @ w1_b) ∘ (w2_a @ w2_b)`. The product of ranks `r1` and `r2` has rank `r1·r2` at most, and
its factors are known: row by row the Khatri-Rao product of the ups, column by column that of the downs. Where
that is less than the matrix itself, the delta stays in factors, exactly.
"""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

from ...core.tensorfile import TensorFile, TensorInfo
from ..factors import Delta, LowRank
from ..full import Dense
from . import dora, values
from .module import Module, Problem, Shape

NAME = "LoHa"

_FACTORS = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
_CORES = ("hada_t1", "hada_t2")


def split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor, or None if the name is no factor of a LoHa."""
    module, _, role = tensor_name.removesuffix(".default").rpartition(".")
    return (module, role) if role in (*_FACTORS, *_CORES) else None


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The module that four factors, and two cores with them or none, make up."""
    if not any(role in roles for role in (*_FACTORS, *_CORES)):
        return None
    needed = (*_FACTORS, *_CORES) if any(role in roles for role in _CORES) else _FACTORS
    if missing := [role for role in needed if role not in roles]:
        return Problem(name, f"has factors of a LoHa, but no `{missing[0]}`", is_damage=True)
    if problem := values.number_problem(roles):
        return Problem(name, problem, is_damage=True)
    shapes = {role: roles[role].shape for role in needed}
    one, other = _product_shape(shapes, 1), _product_shape(shapes, 2)
    if one is None or one != other:
        told = ", ".join(f"{role} {shape}" for role, shape in shapes.items())
        return Problem(name, f"has {told}, which do not multiply to one shape", is_damage=True)
    taken = {role: roles[role] for role in (*needed, "alpha", "scalar", *dora.ROLES) if role in roles}
    if problem := dora.problem(name, roles, one):
        return problem
    reason, note = dora.reason(roles), dora.note(roles, one[0])
    rank = shapes["hada_w1_b"][0]
    return Module(name, NAME, MappingProxyType(taken), rank, one, base_reason=reason, note=note)


def _product_shape(shapes: Mapping[str, Shape], side: int) -> Shape | None:
    """The shape that one of the two products has, or None if its factors do not multiply."""
    a, b = shapes[f"hada_w{side}_a"], shapes[f"hada_w{side}_b"]
    core = shapes.get(f"hada_t{side}")
    if len(a) != 2 or len(b) < 2 or 0 in (*a, *b, *(core or ())):
        return None
    if core is None:
        return (a[0], *b[1:]) if a[1] == b[0] else None
    if len(core) < 3 or len(b) != 2 or core[:2] != (a[0], b[0]):
        return None
    return a[1], b[1], *core[2:]


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Delta:
    """The module's delta: low-rank, exactly, where that is smaller than the matrix.

    Raises:
        FileError: a factor or the scale cannot be read.
    """
    assert module.shape is not None
    (up1, down1), (up2, down2) = _factors(module, tensors, 1), _factors(module, tensors, 2)
    scale = values.scale(module, tensors, module.rank)
    rank = down1.shape[0] * down2.shape[0]
    if rank >= min(module.shape[0], prod(module.shape[1:])):
        whole = Dense((up1 @ down1) * (up2 @ down2), scale, module.shape)
        return dora.applied(whole, module, tensors, base)
    up = (up1[:, :, None] * up2[:, None, :]).flatten(1)
    down = (down1[:, None, :] * down2[None, :, :]).flatten(0, 1)
    return dora.applied(LowRank(up, down, scale, module.shape), module, tensors, base)


def _factors(module: Module, tensors: TensorFile, side: int) -> tuple[Tensor, Tensor]:
    """`(o, r)` and `(r, i)`, float32, of one of the two products; a core is folded into the down."""
    a = values.factor(tensors, module.roles[f"hada_w{side}_a"]).float()
    b = values.factor(tensors, module.roles[f"hada_w{side}_b"]).float()
    if f"hada_t{side}" not in module.roles:
        return a, b.flatten(1)
    core = values.factor(tensors, module.roles[f"hada_t{side}"]).float()
    return a.T, torch.einsum("ab...,bi->ai...", core, b).flatten(1)
