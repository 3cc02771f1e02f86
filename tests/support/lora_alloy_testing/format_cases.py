"""One small module of every format, whichever file of ours makes it: its tensors, its base, and the delta it means.

    for case in FORMAT_CASES: case.tensors, case.base, case.expected

Those that take a model's name lie on a part of a fused weight of Flux.1, or on a weight of SD 1.5 and Wan 2.1, and are
read through ComfyUI's own key map.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import base_formats, exact_modules
from .exact_modules import Made

WEIGHT = "block.weight"


@dataclass(frozen=True)
class FormatCase:
    """A file of one module. `module` is its name; `family` and `rows` are empty unless it is a real model's."""

    title: str
    module: str
    tensors: dict[str, Tensor]
    base: Tensor
    expected: np.ndarray
    family: str = ""


def _named(title: str, module: str, made: Made, family: str = "") -> FormatCase:
    tensors = {f"{module}.{end}": value.contiguous() for end, value in made.tensors.items()}
    return FormatCase(title, module, tensors, torch.zeros(made.delta.shape), made.delta, family)


def _diff(shape: tuple[int, ...]) -> Made:
    value = base_formats.noise(*shape)
    return Made({"diff": value}, base_formats.wide(value))


_PART = (3072, 8)
_PLACES = {
    "a part of a fused weight of Flux.1": ("flux", "lycoris_transformer_blocks_0_attn_to_k"),
    "a weight of SD 1.5": ("sd15", "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_q"),
    "a weight of Wan 2.1": ("wan_1_3b", "lora_unet_blocks_0_self_attn_q"),
}
_ON_MODELS = {
    "lora": lambda: exact_modules.lora(_PART, alpha=2.0),
    "loha": lambda: exact_modules.loha(_PART, alpha=1.5),
    "lokr": lambda: exact_modules.lokr((8, 2), (384, 4), ranks=(0, 2), alpha=1.0),
    "full difference": lambda: _diff(_PART),
}

FORMAT_CASES: tuple[FormatCase, ...] = (
    *(_named(title, "block", made) for title, made in exact_modules.CASES.items() if made.bias is None),
    _named("full difference", "block", _diff((24, 18))),
    _named("full difference, convolution", "block", _diff((16, 6, 3, 3))),
    *(
        FormatCase(case.title, case.module, case.tensors, case.base, case.expected)
        for case in base_formats.CASES
    ),
    *(
        _named(f"{title} on {place}", module, make(), family)
        for place, (family, module) in _PLACES.items()
        for title, make in _ON_MODELS.items()
    ),
)


def verdict(gained: np.ndarray | None, expected: np.ndarray) -> str:
    """`same`, `other`, or `nothing` where the weight stays as it is."""
    if gained is None or not gained.any():
        return "nothing"
    off = float(np.linalg.norm(np.ravel(gained) - np.ravel(expected)))
    return "same" if off < 1e-5 * float(np.linalg.norm(expected)) else "other"
