"""A toy Flux: the same deltas fused as kohya writes them, and split as diffusers and ai-toolkit do.

whole = {"double_blocks.0.img_attn.qkv": noise((96, 32), 4)}
write_lora(path, fused(whole))                 # lora_unet_double_blocks_0_img_attn_qkv
write_lora(path, split(whole), "peft")         # transformer.transformer_blocks.0.attn.to_q, to_k, to_v
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from .builders import Factors, Modules, noise

HIDDEN = 32

# A fused weight → diffusers' name of each part, with its rows in hidden widths.
PARTS: dict[str, tuple[tuple[str, int], ...]] = {
    "double_blocks.0.img_attn.qkv": (
        ("transformer_blocks.0.attn.to_q", 1),
        ("transformer_blocks.0.attn.to_k", 1),
        ("transformer_blocks.0.attn.to_v", 1),
    ),
    "double_blocks.0.txt_attn.qkv": (
        ("transformer_blocks.0.attn.add_q_proj", 1),
        ("transformer_blocks.0.attn.add_k_proj", 1),
        ("transformer_blocks.0.attn.add_v_proj", 1),
    ),
    "single_blocks.0.linear1": (
        ("single_transformer_blocks.0.attn.to_q", 1),
        ("single_transformer_blocks.0.attn.to_k", 1),
        ("single_transformer_blocks.0.attn.to_v", 1),
        ("single_transformer_blocks.0.proj_mlp", 4),
    ),
}
# A weight that both name whole.
WHOLE: dict[str, str] = {
    "double_blocks.0.img_attn.proj": "transformer_blocks.0.attn.to_out.0",
    "double_blocks.0.txt_attn.proj": "transformer_blocks.0.attn.to_add_out",
    "double_blocks.0.img_mlp.0": "transformer_blocks.0.ff.net.0.proj",
    "double_blocks.0.img_mlp.2": "transformer_blocks.0.ff.net.2",
    "double_blocks.0.img_mod.lin": "transformer_blocks.0.norm1.linear",
    "single_blocks.0.linear2": "single_transformer_blocks.0.proj_out",
    "single_blocks.0.modulation.lin": "single_transformer_blocks.0.norm.linear",
    "final_layer.adaLN_modulation.1": "norm_out.linear",
    "final_layer.linear": "proj_out",
}
SWAPPED = "final_layer.adaLN_modulation.1"

# Outputs and inputs in hidden widths.
SIZES: dict[str, tuple[int, int]] = {
    "double_blocks.0.img_attn.qkv": (3, 1),
    "double_blocks.0.txt_attn.qkv": (3, 1),
    "single_blocks.0.linear1": (7, 1),
    "double_blocks.0.img_attn.proj": (1, 1),
    "double_blocks.0.txt_attn.proj": (1, 1),
    "double_blocks.0.img_mlp.0": (4, 1),
    "double_blocks.0.img_mlp.2": (1, 4),
    "double_blocks.0.img_mod.lin": (6, 1),
    "single_blocks.0.linear2": (1, 5),
    "single_blocks.0.modulation.lin": (3, 1),
    "final_layer.adaLN_modulation.1": (2, 1),
    "final_layer.linear": (2, 1),
}


def flux_lora(
    seed: int, *, rank: int = 4, alpha: float | None = None, hidden: int = HIDDEN
) -> dict[str, Factors]:
    """A LoRA on every weight above, by native name."""
    return {
        name: noise((outputs * hidden, inputs * hidden), rank, seed=1000 * seed + place, alpha=alpha)
        for place, (name, (outputs, inputs)) in enumerate(SIZES.items())
    }


def fused(modules: Modules) -> dict[str, Factors]:
    """Under kohya's names: q, k and v in one."""
    return {"lora_unet_" + name.replace(".", "_"): factors for name, factors in modules.items()}


def split(modules: Modules, prefix: str = "transformer.") -> dict[str, Factors]:
    """Under diffusers' names: the rows of a fused up cut apart, its down repeated."""
    made: dict[str, Factors] = {}
    for name, factors in modules.items():
        for part, rows in row_parts(name, factors.up.shape[0]).items():
            made[prefix + part] = replace(factors, up=factors.up[rows].clone(), down=factors.down.clone())
        if name in WHOLE:
            up = torch.cat(factors.up.chunk(2)[::-1]) if name == SWAPPED else factors.up
            made[prefix + WHOLE[name]] = replace(factors, up=up)
    return made


def row_parts(name: str, height: int) -> Mapping[str, slice]:
    """Diffusers' names of the parts of a fused weight, with their rows."""
    unit = height // SIZES[name][0]
    found: dict[str, slice] = {}
    start = 0
    for part, widths in PARTS.get(name, ()):
        found[part] = slice(start, start + widths * unit)
        start += widths * unit
    return found
