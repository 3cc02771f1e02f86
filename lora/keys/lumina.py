"""Lumina 2 and Z-Image: one architecture with fused q, k, v, under which diffusers knows two models.

Lumina 2 has three query heads to one of k and v, so that its fused weight has unequal parts; Z-Image has as
many of each. ComfyUI's slices assume the latter and reach beyond Lumina 2's weights; some of its versions have
none at all. So both are written whole.
"""

from .names import Family
from .text import Encoder
from .transformer import Fused, Transformer

_QKV = ("to_q", "to_k", "to_v")

Z_IMAGE = Transformer(
    Family("z_image", "Z-Image", "z_image", "Z-Image/lora", hidden=3840),
    width=3840,
    renames=(
        ("attention.out", "attention.to_out.0"),
        ("attention.q_norm", "attention.norm_q"),
        ("attention.k_norm", "attention.norm_k"),
        ("x_embedder", "all_x_embedder.2-1"),
        ("final_layer", "all_final_layer.2-1"),
    ),
    fused=(Fused("attention.qkv", tuple(f"attention.{name}" for name in _QKV)),),
    encoders=(Encoder("qwen3_4b"),),
)
LUMINA2 = Transformer(
    Family("lumina2", "Lumina 2", "lumina2", "lumina-2/lora", hidden=2304, kv_width=768),
    width=2304,
    renames=(
        ("attention.out", "attn.to_out.0"),
        ("attention.q_norm", "attn.norm_q"),
        ("attention.k_norm", "attn.norm_k"),
        ("feed_forward.w1", "feed_forward.linear_1"),
        ("feed_forward.w2", "feed_forward.linear_2"),
        ("feed_forward.w3", "feed_forward.linear_3"),
        ("final_layer.adaLN_modulation.1", "norm_out.linear_1"),
        ("final_layer.linear", "norm_out.linear_2"),
        ("adaLN_modulation.1", "norm1.linear"),
        ("context_refiner.#.attention_norm1", "context_refiner.#.norm1"),
        ("attention_norm1", "norm1.norm"),
        ("attention_norm2", "norm2"),
        ("t_embedder.mlp.0", "time_caption_embed.timestep_embedder.linear_1"),
        ("t_embedder.mlp.2", "time_caption_embed.timestep_embedder.linear_2"),
        ("cap_embedder", "time_caption_embed.caption_embedder"),
    ),
    fused=(
        Fused(
            "attention.qkv",
            tuple(f"attn.{name}" for name in _QKV),
            shares=(),
            others=(tuple(f"attention.{name}" for name in _QKV),),
        ),
    ),
    aliases=(Z_IMAGE.renames or (),),
    encoders=(Encoder("gemma2_2b"),),
)
ARCHITECTURES = (Z_IMAGE.architecture(), LUMINA2.architecture())
