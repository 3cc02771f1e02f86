"""HunyuanDiT: two text encoders of its own, q, k, v fused in self attention, k and v in cross attention."""

from .names import Family
from .text import Encoder
from .transformer import Fused, Renames, Transformer

_RENAMES: Renames = (
    ("attn1.out_proj", "attn1.to_out.0"),
    ("attn2.out_proj", "attn2.to_out.0"),
    ("attn2.q_proj", "attn2.to_q"),
    ("q_norm", "norm_q"),
    ("k_norm", "norm_k"),
    ("default_modulation.1", "norm1.linear"),
    ("mlp.fc1", "ff.net.0.proj"),
    ("mlp.fc2", "ff.net.2"),
    ("x_embedder.proj", "pos_embed.proj"),
    ("mlp_t5.0", "text_embedder.linear_1"),
    ("mlp_t5.2", "text_embedder.linear_2"),
    ("t_embedder.mlp.0", "time_extra_emb.timestep_embedder.linear_1"),
    ("t_embedder.mlp.2", "time_extra_emb.timestep_embedder.linear_2"),
    ("extra_embedder.0", "time_extra_emb.extra_embedder.linear_1"),
    ("extra_embedder.2", "time_extra_emb.extra_embedder.linear_2"),
    ("pooler", "time_extra_emb.pooler"),
    ("final_layer.adaLN_modulation.1", "norm_out.linear"),
    ("final_layer.linear", "proj_out"),
)
ARCHITECTURE = Transformer(
    Family("hunyuan_dit", "HunyuanDiT", "hunyuan-dit", "hunyuan-dit-g2/lora", hidden=1408),
    1408,
    _RENAMES,
    # diffusers counts them otherwise, in names that are native ones of their neighbours
    unnamed=("norm1", "norm2", "norm3"),
    fused=(
        Fused("attn1.Wqkv", ("attn1.to_q", "attn1.to_k", "attn1.to_v")),
        Fused("attn2.kv_proj", ("attn2.to_k", "attn2.to_v"), (1, 1)),
    ),
    swapped=("final_layer.adaLN_modulation.1",),
    encoders=(
        Encoder("hydit_clip", ("lora_te1_", "lora_te_")),
        Encoder("mt5xl", ("lora_te2_",), "text_encoder_2"),
    ),
).architecture()
