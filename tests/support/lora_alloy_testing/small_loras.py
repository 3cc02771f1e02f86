"""Small sound LoRA files in a folder, for tests that care about files and not about models."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

SDXL = {
    f"lora_unet_input_blocks_4_1_transformer_blocks_{block}_attn2_to_{end}": (640, 2048)
    for block in (0, 1)
    for end in "kv"
}
SDXL_TEXT = {"lora_te1_text_model_encoder_layers_0_self_attn_q_proj": (768, 768)}
SDXL_PEFT = {
    f"unet.down_blocks.1.attentions.0.transformer_blocks.{block}.attn2.to_{end}": (640, 2048)
    for block in (0, 1)
    for end in "kv"
}
SD15 = {"lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k": (320, 768)}


def write_small(
    path: Path,
    modules: Mapping[str, tuple[int, int]] = SDXL,
    *,
    seed: int = 0,
    rank: int = 4,
    alpha: float | None = 2.0,
    dtype: torch.dtype = torch.float16,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a LoRA of drawn values and return its path; without alpha it has PEFT's spelling."""
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (rows, columns) in modules.items():
        up = (torch.randn(rows, rank, generator=chance) * 0.05).to(dtype)
        down = (torch.randn(rank, columns, generator=chance) * 0.05).to(dtype)
        if alpha is None:
            tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        else:
            tensors |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up}
            tensors[f"{name}.alpha"] = torch.tensor(alpha)
    save_file(tensors, path, dict(metadata or {}))
    return path
