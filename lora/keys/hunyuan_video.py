"""HunyuanVideo, HunyuanImage 2.1, HunyuanVideo 1.5 and FramePack: Flux's blocks in three widths.

The models' own code, and trainers with it, call the modules of a block otherwise than ComfyUI does
(`img_attn_qkv`, `img_mlp.fc1`, `img_mod.linear`); from 1.5 on it keeps q, k and v apart (`img_attn_q`).
"""

from .flux_blocks import ADDED, BLOCKS, MLPS, QKV
from .names import Family
from .text import CLIP_L, Encoder
from .transformer import Fused, Renames, Transformer

_EMBEDDER = "context_embedder.time_text_embed"
_RENAMES: Renames = (
    ("txt_in.individual_token_refiner.blocks.#.adaLN_modulation.1", "refiner_blocks.#.norm_out.linear"),
    ("txt_in.individual_token_refiner.blocks", "refiner_blocks"),
    ("refiner_blocks", "context_embedder.token_refiner.refiner_blocks"),
    ("self_attn.proj", "attn.to_out.0"),
    ("mlp.0", "ff.net.0.proj"),
    ("mlp.2", "ff.net.2"),
    *BLOCKS,
    *MLPS,
    ("img_mod.lin", "norm1.linear"),
    ("txt_mod.lin", "norm1_context.linear"),
    ("modulation.lin", "norm.linear"),
    ("img_in.proj", "x_embedder.proj"),
    ("txt_in.input_embedder", "context_embedder.proj_in"),
    ("txt_in.t_embedder.in_layer", f"{_EMBEDDER}.timestep_embedder.linear_1"),
    ("txt_in.t_embedder.out_layer", f"{_EMBEDDER}.timestep_embedder.linear_2"),
    ("txt_in.c_embedder.in_layer", f"{_EMBEDDER}.text_embedder.linear_1"),
    ("txt_in.c_embedder.out_layer", f"{_EMBEDDER}.text_embedder.linear_2"),
    ("byt5_in.layernorm", "context_embedder_2.norm"),
    ("byt5_in.fc1", "context_embedder_2.linear_1"),
    ("byt5_in.fc2", "context_embedder_2.linear_2"),
    ("byt5_in.fc3", "context_embedder_2.linear_3"),
    ("vision_in.proj.0", "image_embedder.norm_in"),
    ("vision_in.proj.1", "image_embedder.linear_1"),
    ("vision_in.proj.3", "image_embedder.linear_2"),
    ("vision_in.proj.4", "image_embedder.norm_out"),
    ("cond_type_embedding", "cond_type_embed"),
    ("final_layer.linear", "proj_out"),
    ("final_layer.adaLN_modulation.1", "norm_out.linear"),
)
# The names of the models' own code.
_ORIGINAL: Renames = (
    *(
        (f"{stream}_attn.{end}", f"{stream}_attn_{end}")
        for stream in ("img", "txt", "self")
        for end in ("qkv", "proj")
    ),
    *(
        (f"{mlp}.{old}", f"{mlp}.{new}")
        for mlp in ("img_mlp", "txt_mlp", "mlp")
        for old, new in (("0", "fc1"), ("2", "fc2"))
    ),
    *((f"{mod}.lin", f"{mod}.linear") for mod in ("img_mod", "txt_mod", "modulation")),
)


def _apart(stream: str) -> tuple[str, ...]:
    return tuple(f"{stream}_attn_{part}" for part in "qkv")


_FUSED = (
    Fused("img_attn.qkv", QKV, others=(_apart("img"),)),
    Fused("txt_attn.qkv", ADDED, others=(_apart("txt"),)),
    Fused("self_attn.qkv", QKV, others=(_apart("self"),)),
    Fused(
        "linear1",
        (*QKV, "proj_mlp"),
        (1, 1, 1, 4),
        others=(("linear1_q", "linear1_k", "linear1_v", "linear1_mlp"),),
    ),
)


def _hunyuan(
    key: str, title: str, names: tuple[str, str], width: int, time: str, encoders: tuple[Encoder, ...]
) -> Transformer:
    frame = tuple(
        (f"{here}.{end}_layer", f"{time}.{there}.linear_{number}")
        for here, there in (
            ("time_in", "timestep_embedder"),
            ("time_r_in", "timestep_embedder_r"),
            ("vector_in", "text_embedder"),
            ("guidance_in", "guidance_embedder"),
        )
        for end, number in (("in", 1), ("out", 2))
    )
    return Transformer(
        Family(key, title, *names, hidden=width),
        width,
        renames=(*_RENAMES, *frame),
        fused=_FUSED,
        aliases=(_ORIGINAL,),
        swapped=("final_layer.adaLN_modulation.1",),
        encoders=encoders,
    )


_TEXT = (Encoder("qwen25_7b"), Encoder("byt5_small", ("lora_te2_",), "text_encoder_2"))
ARCHITECTURES = tuple(
    _hunyuan(*row).architecture()
    for row in (
        (
            "hunyuan_video",
            "HunyuanVideo",
            ("hunyuan_video", "hunyuan-video/lora"),
            3072,
            "time_text_embed",
            (Encoder("llama"), Encoder(CLIP_L, ("lora_te1_", "lora_te_", "lora_te2_"))),
        ),
        (
            "hunyuan_image",
            "HunyuanImage 2.1",
            ("hunyuan-image-2.1", "hunyuan-image-2.1/lora"),
            3584,
            "time_guidance_embed",
            _TEXT,
        ),
        (
            "hunyuan_video_15",
            "HunyuanVideo 1.5",
            ("hunyuan_video_1_5", "hunyuan-video-1.5/lora"),
            2048,
            "time_embed",
            _TEXT,
        ),
    )
)
