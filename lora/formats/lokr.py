"""LoKr (LyCORIS, arXiv:2309.14859): a Kronecker product of two matrices, each whole or in factors.

`delta = scale · kron(w1, w2)`. The scale is alpha / rank only if a matrix is in factors, with the rank of w2 where
both are; of two whole ones every loader leaves alpha out (`spec/comfyui-contract.md` §3.2). The rank of the
product is that of w1 times that of w2: where factors keep it below half of the matrix, the delta is low-rank,
exactly; otherwise it stays a Kronecker product, as two whole matrices always do.
"""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

from ...core.tensorfile import TensorFile, TensorInfo
from ..factors import Delta, LowRank
from ..full import Kron
from . import dora, values
from .module import Module, Problem, Shape

NAME = "LoKr"
UNREAD = {
    "alpha": "both matrices of its LoKr are whole, where loaders leave alpha out",
    "lokr_t1": "a core of the smaller matrix, which no loader reads",
}

_FIRST = ("lokr_w1", "lokr_w1_a", "lokr_w1_b")
_SECOND = ("lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2")


def split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor, or None if the name is no part of a LoKr."""
    module, _, role = tensor_name.removesuffix(".default").rpartition(".")
    return (module, role) if role in (*_FIRST, *_SECOND, "lokr_t1") else None


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The module that two matrices make up, whole ones or in factors."""
    if not any(role in roles for role in (*_FIRST, *_SECOND)):
        return None
    first, second = _side(roles, "lokr_w1", None), _side(roles, "lokr_w2", "lokr_t2")
    for side, needed in (("lokr_w1", first), ("lokr_w2", second)):
        if missing := [role for role in needed if role not in roles]:
            both = f"neither `{side}` nor" if len(missing) > 1 else "no"
            return Problem(name, f"has matrices of a LoKr, but {both} `{missing[0]}`", is_damage=True)
    if problem := values.number_problem(roles):
        return Problem(name, problem, is_damage=True)
    shapes = {role: roles[role].shape for role in (*first, *second)}
    outer, inner = _matrix_shape(shapes, first), _matrix_shape(shapes, second)
    if outer is None or inner is None or any(size != 1 for size in outer[2:]):
        told = ", ".join(f"{role} {shape}" for role, shape in shapes.items())
        return Problem(name, f"has {told}, which make up no Kronecker product", is_damage=True)
    shape = (outer[0] * inner[0], outer[1] * inner[1], *inner[2:])
    rank = _rank(shapes)
    numbers = ("alpha", "scalar") if rank else ("scalar",)
    taken = {role: roles[role] for role in (*first, *second, *numbers, *dora.ROLES) if role in roles}
    whole_rank = min(outer[:2]) * min(inner[0], prod(inner[1:]))
    if problem := dora.problem(name, roles, shape):
        return problem
    reason, note = dora.reason(roles), dora.note(roles, shape[0])
    taken_roles = MappingProxyType(taken)
    return Module(name, NAME, taken_roles, rank or whole_rank, shape, base_reason=reason, note=note)


def _side(roles: Mapping[str, TensorInfo], whole: str, core: str | None) -> tuple[str, ...]:
    """The roles of one matrix: the whole if it is there, else its factors."""
    if whole in roles:
        return (whole,)
    factors = (f"{whole}_a", f"{whole}_b")
    return (*factors, core) if core in roles and core else factors


def _matrix_shape(shapes: Mapping[str, Shape], side: tuple[str, ...]) -> Shape | None:
    """The shape of one matrix, its kernel with it, or None if its factors do not multiply."""
    if any(len(shapes[role]) < 2 or 0 in shapes[role] for role in side):
        return None
    if len(side) == 1:
        return shapes[side[0]]
    a, b = shapes[side[0]], shapes[side[1]]
    if len(a) != 2:
        return None
    if len(side) == 2:
        return (a[0], *b[1:]) if a[1] == b[0] else None
    core = shapes[side[2]]
    if len(core) < 3 or len(b) != 2 or core[:2] != (a[0], b[0]):
        return None
    return a[1], b[1], *core[2:]


def _rank(shapes: Mapping[str, Shape]) -> int:
    """The rank that alpha is divided by; 0 if both matrices are whole."""
    for role in ("lokr_w2_b", "lokr_w1_b"):
        if role in shapes:
            return shapes[role][0]
    return 0


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Delta:
    """The module's delta, low-rank where that is smaller by far.

    Raises:
        FileError: a matrix or the scale cannot be read.
    """
    assert module.shape is not None
    scale = values.scale(module, tensors, module.rank)
    first, second = _pair(module, "lokr_w1", tensors), _pair(module, "lokr_w2", tensors)
    is_whole = len(first) == len(second) == 1
    if not is_whole:
        (up1, down1), (up2, down2) = _factored(first), _factored(second)
        rank = down1.shape[0] * down2.shape[0]
        if 2 * rank < min(module.shape[0], prod(module.shape[1:])):
            thin = LowRank(_kron(up1, up2), _kron(down1, down2), scale, module.shape)
            return dora.applied(thin, module, tensors, base)
    delta = Kron(_multiplied(first), _multiplied(second), scale, module.shape)
    return dora.applied(delta, module, tensors, base)


def _pair(module: Module, whole: str, tensors: TensorFile) -> tuple[Tensor, ...]:
    """One matrix whole, as stored, or as `(o, r)` and `(r, i)` in float32; a core is folded into the down."""
    if whole in module.roles:
        return (values.factor(tensors, module.roles[whole]).flatten(1),)
    a = values.factor(tensors, module.roles[f"{whole}_a"]).float()
    b = values.factor(tensors, module.roles[f"{whole}_b"]).float()
    if whole == "lokr_w1" or "lokr_t2" not in module.roles:
        return a, b.flatten(1)
    core = values.factor(tensors, module.roles["lokr_t2"]).float()
    return a.T, torch.einsum("ab...,bi->ai...", core, b).flatten(1)


def _factored(pair: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Two factors; those of a whole matrix are itself and an identity, on its smaller side."""
    if len(pair) == 2:
        return pair[0], pair[1]
    whole = pair[0].float()
    identity = torch.eye(min(whole.shape))
    return (identity, whole) if whole.shape[0] <= whole.shape[1] else (whole, identity)


def _multiplied(pair: tuple[Tensor, ...]) -> Tensor:
    return pair[0] if len(pair) == 1 else pair[0] @ pair[1]


def _kron(one: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product of two matrices; torch's own refuses transposed ones."""
    product = one[:, None, :, None] * other[None, :, None, :]
    return product.reshape(one.shape[0] * other.shape[0], one.shape[1] * other.shape[1])
