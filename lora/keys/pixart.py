"""PixArt Alpha and Sigma: q, k, v fused in self attention, k and v in cross attention."""

from .names import Family
from .text import T5, Encoder
from .transformer import Fused, Renames, Transformer

_RENAMES: Renames = (
    ("blocks", "transformer_blocks"),
    ("attn.proj", "attn1.to_out.0"),
    ("cross_attn.q_linear", "attn2.to_q"),
    ("cross_attn.proj", "attn2.to_out.0"),
    ("mlp.fc1", "ff.net.0.proj"),
    ("mlp.fc2", "ff.net.2"),
    ("x_embedder.proj", "pos_embed.proj"),
    ("y_embedder.y_proj.fc1", "caption_projection.linear_1"),
    ("y_embedder.y_proj.fc2", "caption_projection.linear_2"),
    ("t_embedder.mlp.0", "adaln_single.emb.timestep_embedder.linear_1"),
    ("t_embedder.mlp.2", "adaln_single.emb.timestep_embedder.linear_2"),
    ("csize_embedder.mlp.0", "adaln_single.emb.resolution_embedder.linear_1"),
    ("csize_embedder.mlp.2", "adaln_single.emb.resolution_embedder.linear_2"),
    ("ar_embedder.mlp.0", "adaln_single.emb.aspect_ratio_embedder.linear_1"),
    ("ar_embedder.mlp.2", "adaln_single.emb.aspect_ratio_embedder.linear_2"),
    ("t_block.1", "adaln_single.linear"),
    ("final_layer.linear", "proj_out"),
)
ARCHITECTURE = Transformer(
    Family("pixart", "PixArt", "pixart", "pixart/lora", hidden=1152),
    1152,
    _RENAMES,
    fused=(
        Fused("attn.qkv", ("attn1.to_q", "attn1.to_k", "attn1.to_v")),
        Fused("cross_attn.kv_linear", ("attn2.to_k", "attn2.to_v"), (1, 1)),
    ),
    comfyui_parts=True,
    encoders=(Encoder(T5, ("lora_te1_", "lora_te_", "lora_te2_", "lora_te3_")),),
).architecture()
