"""BOFT (arXiv:2311.06243) as LyCORIS stores it: the rows of the base weight go through a butterfly of rotations.

Stage i of m pairs rows that stand `2^i · b/2` apart into blocks of size b and turns each block by R; `.rescale`
then multiplies every row. delta is what that changes. It is ComfyUI's delta at strength 1: alpha limits the norm
of all Q together, where LyCORIS takes alpha times the rows. Without alpha ComfyUI applies nothing at all
(`spec/comfyui-contract.md` §2.4); such a file is read as LyCORIS means it, without a limit.
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
from . import oft
from .module import Module, Problem
from .rotation import blocks_problem, cayley, limited, skewed
from .values import factor, number, number_problem

NAME = "boft"
NO_ALPHA = (
    "BOFT without an alpha has no effect in ComfyUI, which fails on it; a merge applies it as LyCORIS does"
)
NOTE = "BOFT's rotations are limited by alpha, as in ComfyUI; LyCORIS means alpha times the number of outputs"

split = oft.split


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The module these tensors make up, what is wrong with them, or None if they are no BOFT."""
    if "blocks" not in roles or len(roles["blocks"].shape) != 4:
        return None
    shape = roles["blocks"].shape
    rows = shape[1] * shape[2]
    if problem := blocks_problem(shape, 4):
        return Problem(name, problem, is_damage=True)
    if shape[2] % 2 or any(rows % (2**stage * shape[2]) for stage in range(shape[0])):
        return Problem(name, f"has a butterfly of shape {shape}, which does not close", is_damage=True)
    if "dora" in roles or "magnitude" in roles:
        return Problem(name, "has DoRA magnitudes on a rotation, which no trainer means", is_damage=False)
    if "rescale" in roles and prod(roles["rescale"].shape) != rows:
        return Problem(name, f"rescales {roles['rescale'].shape}, and turns {rows} rows", is_damage=True)
    if problem := number_problem(roles):
        return Problem(name, problem, is_damage=True)
    taken = {role: roles[role] for role in ("blocks", "rescale", "alpha") if role in roles}
    note = NOTE if "alpha" in roles else NO_ALPHA
    return Module(
        name, NAME, MappingProxyType(taken), rows, None, base_reason=oft.REASON, outputs=rows, note=note
    )


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Delta:
    """The module's delta on `base`, `(o, *rest)` float32.

    Raises:
        FileError: the blocks cannot be read, or alpha is not a finite number.
    """
    assert base is not None, "BOFT has a base_reason"
    if base.shape[0] != module.outputs:
        raise FileError(
            f"`{module.name}` of `{tensors.path}` rotates {module.outputs} outputs, and the base weight has"
            f" {base.shape[0]}; it is for another model."
        )
    alpha = number(tensors, module.roles["alpha"]) if "alpha" in module.roles else 0.0
    turns = cayley(limited(skewed(factor(tensors, module.roles["blocks"])), alpha)).float()
    flat = base.flatten(1)
    turned = flat
    for stage, blocks in enumerate(turns):
        turned = _stage(turned, blocks, 2**stage * blocks.shape[-1] // 2)
    if "rescale" in module.roles:
        turned = turned * factor(tensors, module.roles["rescale"]).float().reshape(-1, 1)
    return Dense(turned - flat, 1.0, module.shape or tuple(base.shape))


def _stage(rows: Tensor, blocks: Tensor, apart: int) -> Tensor:
    """One stage: rows `apart` rows apart meet in blocks `(n, b, b)`, are turned, and go back to their place."""
    paired = rows.unflatten(0, (-1, 2, apart)).transpose(1, 2).flatten(0, 2)
    turned = torch.einsum("nij,njc->nic", blocks, paired.unflatten(0, (-1, blocks.shape[-1])))
    return turned.flatten(0, 1).unflatten(0, (-1, apart, 2)).transpose(1, 2).flatten(0, 2)
