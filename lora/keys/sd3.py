"""Stable Diffusion 3 and 3.5: native weights fuse q, k, v of both streams, diffusers' names address the parts."""

from .names import Family
from .text import CLIP_G, CLIP_L, T5, Encoder
from .transformer import Fused, Renames, Transformer

_ADDED = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
_RENAMES: Renames = (
    ("joint_blocks", "transformer_blocks"),
    ("x_block.attn.proj", "attn.to_out.0"),
    ("x_block.attn.ln_q", "attn.norm_q"),
    ("x_block.attn.ln_k", "attn.norm_k"),
    ("x_block.attn2.proj", "attn2.to_out.0"),
    ("x_block.attn2.ln_q", "attn2.norm_q"),
    ("x_block.attn2.ln_k", "attn2.norm_k"),
    ("x_block.mlp.fc1", "ff.net.0.proj"),
    ("x_block.mlp.fc2", "ff.net.2"),
    ("x_block.adaLN_modulation.1", "norm1.linear"),
    ("context_block.attn.proj", "attn.to_add_out"),
    ("context_block.attn.ln_q", "attn.norm_added_q"),
    ("context_block.attn.ln_k", "attn.norm_added_k"),
    ("context_block.mlp.fc1", "ff_context.net.0.proj"),
    ("context_block.mlp.fc2", "ff_context.net.2"),
    ("context_block.adaLN_modulation.1", "norm1_context.linear"),
    ("x_embedder.proj", "pos_embed.proj"),
    ("t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"),
    ("t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"),
    ("y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"),
    ("y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"),
    ("final_layer.adaLN_modulation.1", "norm_out.linear"),
    ("final_layer.linear", "proj_out"),
)
_FUSED = (
    Fused("x_block.attn.qkv", ("attn.to_q", "attn.to_k", "attn.to_v")),
    Fused("x_block.attn2.qkv", ("attn2.to_q", "attn2.to_k", "attn2.to_v")),
    Fused("context_block.attn.qkv", _ADDED),
)
_ENCODERS = (
    Encoder(CLIP_L, ("lora_te1_", "lora_te_"), "text_encoder"),
    Encoder(CLIP_G, ("lora_te2_",), "text_encoder_2"),
    Encoder(T5, ("lora_te3_",), "text_encoder_3"),
)


def _sd3(key: str, title: str, depth: int, modelspec: str) -> Transformer:
    width = 64 * depth
    return Transformer(
        Family(key, title, "sd3", modelspec, hidden=width),
        width,
        _RENAMES,
        fused=_FUSED,
        swapped=(
            "final_layer.adaLN_modulation.1",
            f"joint_blocks.{depth - 1}.context_block.adaLN_modulation.1",
        ),
        comfyui_parts=True,
        encoders=_ENCODERS,
    )


ARCHITECTURES = tuple(
    _sd3(key, title, depth, f"{modelspec}/lora").architecture()
    for key, title, depth, modelspec in (
        ("sd35_large", "Stable Diffusion 3.5 Large", 38, "stable-diffusion-3-5-large"),
        ("sd35_medium", "Stable Diffusion 3.5 Medium", 24, "stable-diffusion-3-5-medium"),
        ("sd3", "Stable Diffusion 3 Medium", 24, "stable-diffusion-3-medium"),
    )
)
