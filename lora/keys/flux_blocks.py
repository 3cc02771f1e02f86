"""What the families with Flux's blocks share: ComfyUI's names in them, and diffusers'."""

from .transformer import Fused, Renames

QKV = ("attn.to_q", "attn.to_k", "attn.to_v")
ADDED = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
DOUBLE = (Fused("img_attn.qkv", QKV), Fused("txt_attn.qkv", ADDED))
BLOCKS: Renames = (
    ("double_blocks", "transformer_blocks"),
    ("single_blocks", "single_transformer_blocks"),
    ("img_attn.proj", "attn.to_out.0"),
    ("txt_attn.proj", "attn.to_add_out"),
    ("img_attn.norm.query_norm", "attn.norm_q"),
    ("img_attn.norm.key_norm", "attn.norm_k"),
    ("txt_attn.norm.query_norm", "attn.norm_added_q"),
    ("txt_attn.norm.key_norm", "attn.norm_added_k"),
    ("norm.query_norm", "attn.norm_q"),
    ("norm.key_norm", "attn.norm_k"),
)
MLPS: Renames = (
    ("img_mlp.0", "ff.net.0.proj"),
    ("img_mlp.2", "ff.net.2"),
    ("txt_mlp.0", "ff_context.net.0.proj"),
    ("txt_mlp.2", "ff_context.net.2"),
    ("linear2", "proj_out"),
)
