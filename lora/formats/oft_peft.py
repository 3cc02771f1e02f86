"""OFT as PEFT and OneTrainer store it: the columns of the base weight, rotated in blocks. ComfyUI reads none.

`.oft_R.weight` holds, for every block, what stands above the diagonal of its skew-symmetric Q, row by row. The
rotation is that of PEFT's default, a Cayley transform cut off after the fourth power,

    R = I + 2Q + 2Q² + 2Q³ + Q⁴,   W' = W Rᵀ

since a file does not say whether it was trained otherwise; the exact transform differs by O(Q⁴). One block for a
wider weight is shared by all its blocks. OneTrainer's marker `.oft_R.scaled_oft` divides Q by the root of the
numbers in a block.
"""

from collections.abc import Mapping
from math import isqrt
from types import MappingProxyType

import torch
from torch import Tensor

from ...core.errors import FileError
from ...core.tensorfile import TensorFile, TensorInfo
from ..factors import Delta
from ..full import Dense
from . import oft
from .module import Module, Problem
from .values import factor

NAME = "oft_peft"
NOTE = (
    "ComfyUI does not read PEFT's OFT; a merge turns it as PEFT does by default, by the series of four powers"
)

_ENDS = {
    ".oft_R.weight": "R",
    ".oft_R.default.weight": "R",
    ".oft_R.scaled_oft": "scaled",
    ".oft_R.default.scaled_oft": "scaled",
}


def split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor, or None if the name is none of PEFT's OFT."""
    for end, role in _ENDS.items():
        if tensor_name.endswith(end):
            return tensor_name.removesuffix(end), role
    return None


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The module these tensors make up, what is wrong with them, or None if they are no OFT of PEFT's."""
    if "R" not in roles:
        return None
    shape = roles["R"].shape
    if len(shape) != 2 or 0 in shape or not _size(shape[1]):
        return Problem(name, f"has rotations of shape {shape}, not rows of triangles", is_damage=True)
    taken = {role: roles[role] for role in ("R", "scaled") if role in roles}
    columns = shape[0] * _size(shape[1]) if shape[0] > 1 else 0
    return Module(
        name,
        NAME,
        MappingProxyType(taken),
        shape[0] * _size(shape[1]),
        None,
        base_reason=oft.REASON,
        inputs=columns,
        note=NOTE,
    )


def _size(count: int) -> int:
    """The size of a block with `count` numbers above its diagonal; 0 if there is none."""
    size = (1 + isqrt(1 + 8 * count)) // 2
    return size if size * (size - 1) // 2 == count else 0


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Delta:
    """The module's delta on `base`, `(o, *rest)` float32.

    Raises:
        FileError: the rotations cannot be read, or are for a weight of another width.
    """
    assert base is not None, "OFT has a base_reason"
    triangles = factor(tensors, module.roles["R"]).double()
    blocks, count = triangles.shape
    size = _size(count)
    flat = base.flatten(1)
    if flat.shape[1] != blocks * size and (blocks > 1 or flat.shape[1] % size):
        raise FileError(
            f"`{module.name}` of `{tensors.path}` rotates {blocks * size} inputs, and the base weight has"
            f" {flat.shape[1]}; it is for another model."
        )
    if "scaled" in module.roles:
        triangles = triangles / count**0.5
    rows, columns = torch.triu_indices(size, size, 1)
    upper = triangles.new_zeros(blocks, size, size)
    upper[:, rows, columns] = triangles
    skew = upper - upper.transpose(1, 2)
    square = skew @ skew
    turn = (2 * skew + 2 * square + 2 * square @ skew + square @ square).float()
    cut = flat.reshape(flat.shape[0], -1, size)
    delta = torch.einsum("onk,nck->onc", cut, turn.expand(cut.shape[1], -1, -1))
    return Dense(delta.flatten(1), 1.0, module.shape or tuple(base.shape))
