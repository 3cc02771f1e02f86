"""DoRA (arXiv:2402.09353) on top of any delta: the patched weight is stretched to learnt magnitudes.

    W + delta' = magnitude / norm · (W + delta)

`.dora_scale` is read as ComfyUI applies it (`spec/comfyui-contract.md` §2.4), in this delta taken at strength 1:
one magnitude an input is divided by the norms of the patched weight's columns, one an output by the norms of
the *base* weight's rows, where the trainers take the patched weight's. What ComfyUI does not read follows its
trainer, which takes the patched weight's rows: PEFT's `.lora_magnitude_vector`, ai-toolkit's `.magnitude`, and
a `.dora_scale` of one axis with a number an output.

A format takes the roles in `ROLES` beside its own, asks `problem` in `recognise`, sets `base_reason` to
`REASON`, and ends its `load` with `applied`.
"""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from ...core.errors import FileError
from ...core.tensorfile import TensorFile, TensorInfo
from ..factors import Delta
from ..full import Dense
from .module import Module, Problem
from .values import factor

REASON = "DoRA magnitudes"
NOTE = (
    "DoRA with one magnitude an output is applied as ComfyUI does, over the norms of the base weight; trainers"
    " take those of the patched weight, so images differ from those of training"
)
SUFFIXES: Mapping[str, str] = {
    ".dora_scale": "dora",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".magnitude": "magnitude",
}
ROLES = ("dora", "magnitude")


def reason(roles: Mapping[str, TensorInfo]) -> str:
    """The `base_reason` of a module with these roles: empty without magnitudes."""
    return REASON if any(role in roles for role in ROLES) else ""


def note(roles: Mapping[str, TensorInfo], outputs: int) -> str:
    """What a user should know of the convention, empty where ComfyUI and the trainers agree."""
    return NOTE if "dora" in roles and _is_rows_of_base(roles["dora"].shape, outputs) else ""


def problem(name: str, roles: Mapping[str, TensorInfo], shape: tuple[int, ...]) -> Problem | None:
    """What is wrong with the magnitudes of a module whose delta has `shape`, from headers."""
    if all(role in roles for role in ROLES):
        return Problem(name, "has its DoRA magnitudes twice", is_damage=True)
    info = next((roles[role] for role in ROLES if role in roles), None)
    if info is None:
        return None
    is_vector = bool(info.shape) and sum(size != 1 for size in info.shape) <= 1
    if not is_vector or not _fits(info.shape, shape, "dora" in roles):
        text = f"has DoRA magnitudes of shape {info.shape} for a delta of {shape}, one an output or an input"
        return Problem(name, text, is_damage=True)
    return None


def applied(inner: Delta, module: Module, tensors: TensorFile, base: Tensor | None) -> Delta:
    """`inner` itself if the module has no magnitudes, else the change that the stretched weight is.

    Args:
        inner: the delta before it is stretched, its scale included.
        module: its roles tell the magnitudes.
        tensors: the file.
        base: `(o, *rest)` float32, as many values as `inner` has.

    Raises:
        FileError: the magnitudes are no floating-point numbers, or not as many as the base weight has inputs.
    """
    role = next((role for role in ROLES if role in module.roles), None)
    if role is None:
        return inner
    assert base is not None, "a module with magnitudes has a base_reason"
    magnitudes = factor(tensors, module.roles[role]).float().flatten()
    patched = base + inner.flat().reshape(base.shape)
    outputs = base.shape[0]
    is_rows = magnitudes.numel() == outputs and (
        role == "magnitude" or module.roles[role].shape[0] == outputs
    )
    if is_rows:
        of_base = role == "dora" and _is_rows_of_base(module.roles[role].shape, outputs)
        norms = (base if of_base else patched).flatten(1).norm(dim=1)
        rest = (1,) * (base.dim() - 1)
        stretch = (magnitudes / (norms + _EPS)).reshape(-1, *rest)
    else:
        if magnitudes.numel() != base.shape[1]:
            raise FileError(
                f"`{module.name}` of `{tensors.path}` has DoRA magnitudes for {magnitudes.numel()} inputs, and the"
                f" base weight has {base.shape[1]}; it is for another model."
            )
        norms = patched.transpose(0, 1).flatten(1).norm(dim=1)
        rest = (1,) * (base.dim() - 2)
        stretch = (magnitudes / (norms + _EPS)).reshape(1, -1, *rest)
    return Dense((patched * stretch - base).flatten(1), 1.0, inner.shape)


_EPS = torch.finfo(torch.float32).eps


def _fits(form: tuple[int, ...], shape: tuple[int, ...], may_be_inputs: bool) -> bool:
    """Whether magnitudes of this form are one an output, or one an input, of a delta of `shape`."""
    count = prod(form)
    if count == shape[0] and (form[0] == count or len(form) == 1 or not may_be_inputs):
        return True
    # A flat convolution's columns are its inputs times its kernel, of which only the magnitudes show the inputs.
    is_of_kernel = len(form) > 2 and len(shape) == 2 and shape[1] % count == 0
    return may_be_inputs and (count == shape[1] or is_of_kernel)


def _is_rows_of_base(shape: tuple[int, ...], outputs: int) -> bool:
    # Of one axis, its numbers would meet the columns in ComfyUI: an error there, or with as many of both noise.
    return len(shape) > 1 and shape[0] == outputs
