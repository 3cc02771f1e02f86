"""Wan 2.1 and 2.2: one set of names in three widths, whose variants add images, controls or sound.

The two experts of Wan 2.2 14B are of one shape: nothing in a file tells for which one it was trained.
"""

from .names import Family
from .text import Encoder
from .transformer import Renames, Transformer

_RENAMES: Renames = (
    ("cross_attn.k_img", "attn2.add_k_proj"),
    ("cross_attn.v_img", "attn2.add_v_proj"),
    ("cross_attn.norm_k_img", "attn2.norm_added_k"),
    *(
        (f"{here}.{old}", f"{there}.{new}")
        for here, there in (("self_attn", "attn1"), ("cross_attn", "attn2"))
        for old, new in (
            ("q", "to_q"),
            ("k", "to_k"),
            ("v", "to_v"),
            ("o", "to_out.0"),
            ("norm_q", "norm_q"),
            ("norm_k", "norm_k"),
        )
    ),
    ("norm3", "norm2"),
    ("ffn.0", "ffn.net.0.proj"),
    ("ffn.2", "ffn.net.2"),
    ("before_proj", "proj_in"),
    ("after_proj", "proj_out"),
    ("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
    ("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
    ("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
    ("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
    ("time_projection.1", "condition_embedder.time_proj"),
    ("img_emb.proj.0", "condition_embedder.image_embedder.norm1"),
    ("img_emb.proj.1", "condition_embedder.image_embedder.ff.net.0.proj"),
    ("img_emb.proj.3", "condition_embedder.image_embedder.ff.net.2"),
    ("img_emb.proj.4", "condition_embedder.image_embedder.norm2"),
    ("head.head", "proj_out"),
)
_TEXT = (Encoder("umt5xxl"),)


def _wan(key: str, title: str, width: int) -> Transformer:
    return Transformer(Family(key, title, "wan", "wan2.1/lora"), width, _RENAMES, encoders=_TEXT)


ARCHITECTURES = tuple(
    _wan(key, title, width).architecture()
    for key, title, width in (
        ("wan_14b", "Wan 2.1/2.2 14B", 5120),
        ("wan_1_3b", "Wan 2.1 1.3B", 1536),
        ("wan_5b", "Wan 2.2 5B", 3072),
    )
)
