"""Mochi: two streams of unequal widths, each with fused q, k, v, and gated MLPs whose halves diffusers exchanges."""

from .names import Family
from .text import T5, Encoder
from .transformer import Fused, Renames, Transformer

_RENAMES: Renames = (
    ("blocks", "transformer_blocks"),
    ("transformer_blocks.47.mod_y", "transformer_blocks.47.norm1_context.linear_1"),
    ("mod_x", "norm1.linear"),
    ("mod_y", "norm1_context.linear"),
    ("attn.proj_x", "attn1.to_out.0"),
    ("attn.proj_y", "attn1.to_add_out"),
    ("attn.q_norm_x", "attn1.norm_q"),
    ("attn.k_norm_x", "attn1.norm_k"),
    ("attn.q_norm_y", "attn1.norm_added_q"),
    ("attn.k_norm_y", "attn1.norm_added_k"),
    ("mlp_x.w1", "ff.net.0.proj"),
    ("mlp_x.w2", "ff.net.2"),
    ("mlp_y.w1", "ff_context.net.0.proj"),
    ("mlp_y.w2", "ff_context.net.2"),
    ("x_embedder.proj", "patch_embed.proj"),
    ("t_embedder.mlp.0", "time_embed.timestep_embedder.linear_1"),
    ("t_embedder.mlp.2", "time_embed.timestep_embedder.linear_2"),
    ("t5_y_embedder", "time_embed.pooler"),
    ("t5_yproj", "time_embed.caption_proj"),
    ("final_layer.mod", "norm_out.linear"),
    ("final_layer.linear", "proj_out"),
)
ARCHITECTURE = Transformer(
    Family("mochi", "Mochi", "mochi", "mochi/lora", hidden=3072),
    3072,
    _RENAMES,
    fused=(
        Fused("attn.qkv_x", ("attn1.to_q", "attn1.to_k", "attn1.to_v")),
        Fused("attn.qkv_y", ("attn1.add_q_proj", "attn1.add_k_proj", "attn1.add_v_proj")),
    ),
    swapped=("blocks.#.mlp_x.w1", "blocks.#.mlp_y.w1", "final_layer.mod"),
    encoders=(Encoder(T5, ("lora_te1_", "lora_te_", "lora_te2_", "lora_te3_")),),
).architecture()
