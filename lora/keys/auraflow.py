"""AuraFlow: native blocks number their two streams, diffusers gives them Flux's names."""

from .names import Family
from .text import Encoder
from .transformer import Renames, Transformer

_DOUBLE, _SINGLE = "joint_transformer_blocks.#", "single_transformer_blocks.#"
_RENAMES: Renames = (
    ("double_layers", "joint_transformer_blocks"),
    ("single_layers", "single_transformer_blocks"),
    *((f"{_DOUBLE}.attn.w2{end}", f"{_DOUBLE}.attn.to_{end}") for end in "qkv"),
    *((f"{_DOUBLE}.attn.w1{end}", f"{_DOUBLE}.attn.add_{end}_proj") for end in "qkv"),
    *((f"{_SINGLE}.attn.w1{end}", f"{_SINGLE}.attn.to_{end}") for end in "qkv"),
    (f"{_DOUBLE}.attn.w2o", f"{_DOUBLE}.attn.to_out.0"),
    (f"{_DOUBLE}.attn.w1o", f"{_DOUBLE}.attn.to_add_out"),
    (f"{_SINGLE}.attn.w1o", f"{_SINGLE}.attn.to_out.0"),
    ("mlpX", "ff"),
    ("mlpC", "ff_context"),
    ("mlp.c_fc1", "ff.c_fc1"),
    ("mlp.c_fc2", "ff.c_fc2"),
    ("mlp.c_proj", "ff.c_proj"),
    ("c_fc1", "linear_1"),
    ("c_fc2", "linear_2"),
    ("c_proj", "out_projection"),
    ("modX.1", "norm1.linear"),
    ("modCX.1", "norm1.linear"),
    ("modC.1", "norm1_context.linear"),
    ("modF.1", "norm_out.linear"),
    ("t_embedder.mlp.0", "time_step_proj.linear_1"),
    ("t_embedder.mlp.2", "time_step_proj.linear_2"),
    ("cond_seq_linear", "context_embedder"),
    ("init_x_linear", "pos_embed.proj"),
    ("final_linear", "proj_out"),
)
ARCHITECTURE = Transformer(
    Family("auraflow", "AuraFlow", "auraflow", "auraflow/lora"),
    3072,
    _RENAMES,
    swapped=("modF.1",),
    encoders=(Encoder("pile_t5xl"),),
).architecture()
