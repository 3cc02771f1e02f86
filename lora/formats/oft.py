"""OFT (arXiv:2306.07280) as LyCORIS and kohya's trainer store it: the rows of the base weight, rotated in blocks.

    delta = (R − I)ᵀ W,   R = (I + Q)(I − Q)⁻¹,   Q = B − Bᵀ, its norm limited by alpha

LyCORIS' files are read as ComfyUI applies them at strength 1 (`spec/comfyui-contract.md` §3.1): alpha is the limit
itself, where LyCORIS takes alpha times the rows, and a `.rescale` has no effect. Kohya's, with the prefix
`oft_unet_` or blocks in a list for the parts of a fused weight, are not read by ComfyUI: the limit is alpha times
the rows, for each part on its own, as in the trainer.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ...core.errors import FileError
from ...core.tensorfile import TensorFile, TensorInfo
from ..factors import Delta
from ..full import Dense
from .module import Module, Problem
from .rotation import blocks_problem, cayley, limited, skewed
from .values import factor, number, number_problem

NAME = "oft"
REASON = "a rotation of the base weight"
NOTE = (
    "OFT's rotations are limited by alpha and not rescaled, as ComfyUI applies them; LyCORIS means alpha times"
    " the number of outputs, and rescales where it was trained so"
)

_KOHYA = "oft_unet_"
_LISTED = re.compile(r"^(?P<module>.+)\.oft_blocks\.(?P<place>\d{1,3})$")
_ENDS = {".oft_blocks": "blocks", ".rescale": "rescale"}


def split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor, or None if the name is none of OFT's or BOFT's."""
    for end, role in _ENDS.items():
        if tensor_name.endswith(end):
            return tensor_name.removesuffix(end), role
    if listed := _LISTED.match(tensor_name):
        return listed["module"], f"blocks {int(listed['place'])}"
    return None


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The module these tensors make up, what is wrong with them, or None if they are no OFT."""
    taken = {role: info for role, info in roles.items() if role.startswith("blocks")}
    if not taken:
        return None
    count = len(taken)
    if "blocks" not in taken and set(taken) != {f"blocks {place}" for place in range(count)}:
        return Problem(name, "lacks some of its listed rotations", is_damage=True)
    for info in taken.values():
        if problem := blocks_problem(info.shape, 3):
            return Problem(name, problem, is_damage=True)
    if "dora" in roles or "magnitude" in roles:
        return Problem(name, "has DoRA magnitudes on a rotation, which no trainer means", is_damage=False)
    if "alpha" in roles:
        if problem := number_problem(roles):
            return Problem(name, problem, is_damage=True)
        taken["alpha"] = roles["alpha"]
    rows = sum(info.shape[0] * info.shape[1] for role, info in taken.items() if role != "alpha")
    note = "" if _is_kohya(name, taken) or not {"alpha", "rescale"} & roles.keys() else NOTE
    return Module(
        name, NAME, MappingProxyType(taken), rows, None, base_reason=REASON, outputs=rows, note=note
    )


def _is_kohya(name: str, roles: Mapping[str, TensorInfo]) -> bool:
    return name.startswith(_KOHYA) or "blocks" not in roles


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Delta:
    """The module's delta on `base`, `(o, *rest)` float32.

    Raises:
        FileError: the blocks cannot be read, or alpha is not a finite number.
    """
    assert base is not None, "OFT has a base_reason"
    if base.shape[0] != module.outputs:
        raise FileError(
            f"`{module.name}` of `{tensors.path}` rotates {module.outputs} outputs, and the base weight has"
            f" {base.shape[0]}; it is for another model."
        )
    alpha = number(tensors, module.roles["alpha"]) if "alpha" in module.roles else 0.0
    is_kohya = _is_kohya(module.name, module.roles)
    listed = sorted((role for role in module.roles if role != "alpha"), key=lambda role: (len(role), role))
    made, start = [], 0
    for role in listed:
        skew = skewed(factor(tensors, module.roles[role]))
        blocks, size = skew.shape[:2]
        skew = _limited_by_kohya(skew, alpha * blocks * size) if is_kohya else limited(skew, alpha)
        turn = (cayley(skew) - torch.eye(size, dtype=skew.dtype)).float()
        rows = base.narrow(0, start, blocks * size).reshape(blocks, size, -1)
        made.append(torch.einsum("knm,kni->kmi", turn, rows).flatten(0, 1))
        start += blocks * size
    return Dense(torch.cat(made), 1.0, module.shape or tuple(base.shape))


def _limited_by_kohya(skew: Tensor, limit: float) -> Tensor:
    norm = float(skew.norm())
    return skew * ((min(norm, limit) + 1e-8) / (norm + 1e-8))
