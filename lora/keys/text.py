"""Text encoders: the names of their modules, and what their widths rule out.

CLIP's and T5-XXL's names follow from rules; those of the language models are listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..target import TEXT_ENCODERS, Target
from .listing import listed
from .names import INDEX, Module, Names, flat

CLIP_L, CLIP_H, CLIP_G, T5 = "clip_l", "clip_h", "clip_g", "t5xxl"
WIDTHS = {
    CLIP_L: 768,
    CLIP_H: 1024,
    CLIP_G: 1280,
    T5: 4096,
    "umt5xxl": 4096,
    "umt5base": 768,
    "pile_t5xl": 2048,
    "mt5xl": 2048,
    "byt5_small": 1472,
    "llama": 4096,
    "gemma2_2b": 2304,
    "gemma3_12b": 3840,
    "mistral3_24b": 5120,
    "qwen25_3b": 2048,
    "qwen25_7b": 3584,
    "qwen3_06b": 1024,
    "qwen3_2b": 2048,
    "qwen3_4b": 2560,
    "qwen3_8b": 4096,
}

_CLIP_LAYERS = {CLIP_L: 12, CLIP_H: 24, CLIP_G: 32}
# Maps out of the stream between blocks, whose width it is.
_ATTENTION = tuple([f".self_attn.{end}_proj" for end in "qkv"] + [f".SelfAttention.{end}" for end in "qkv"])
_OUTER = ("model.", "bert.")  # trainers name what is inside, too
_T5_BLOCKS = 24
_CLIP_LAYER = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.out_proj",
    "mlp.fc1",
    "mlp.fc2",
    "layer_norm1",
    "layer_norm2",
)
_CLIP_FRAME = (
    "text_model.embeddings.token_embedding",
    "text_model.embeddings.position_embedding",
    "text_model.final_layer_norm",
    "text_projection",
)
_T5_BLOCK = (
    "layer.0.SelfAttention.q",
    "layer.0.SelfAttention.k",
    "layer.0.SelfAttention.v",
    "layer.0.SelfAttention.o",
    "layer.0.layer_norm",
    "layer.1.DenseReluDense.wi_0",
    "layer.1.DenseReluDense.wi_1",
    "layer.1.DenseReluDense.wo",
    "layer.1.layer_norm",
)
_T5_FRAME = (
    "shared",
    "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "encoder.final_layer_norm",
)


@dataclass(frozen=True)
class Encoder:
    """A text encoder of a family.

    Attributes:
        child: what ComfyUI calls it.
        kohya: prefixes of the flattened names; the first is written, all are read.
        diffusers: what the pipeline calls it, such as `text_encoder`.
    """

    child: str
    kohya: tuple[str, ...] = ("lora_te_", "lora_te1_")
    diffusers: str = "text_encoder"


def encoder_names(encoder: Encoder) -> Iterator[Names]:
    """The names of the modules of a text encoder."""
    child, kohya, diffusers = encoder.child, encoder.kohya, encoder.diffusers
    if child in _CLIP_LAYERS:
        yield from clip(child, _CLIP_LAYERS[child], kohya=kohya, diffusers=diffusers)
    elif child == T5:
        yield from t5(kohya=kohya, diffusers=diffusers)
    else:
        yield from _listed(encoder)


def clip(child: str, layers: int, *, kohya: tuple[str, ...], diffusers: str) -> Iterator[Names]:
    """The names of a CLIP text encoder that is the part `child` of ComfyUI's.

    Args:
        layers: 12 in CLIP-L, 24 in CLIP-H, 32 in CLIP-G.
        kohya: prefixes of the flattened names; the first is written, all are read.
        diffusers: what the pipeline calls this encoder, such as `text_encoder`.
    """
    paths = [f"text_model.encoder.layers.{INDEX}.{name}" for name in _CLIP_LAYER]
    yield from _encoder(child, paths, kohya, diffusers, range(layers))
    yield from _encoder(child, _CLIP_FRAME, kohya, diffusers)


def t5(*, kohya: tuple[str, ...], diffusers: str) -> Iterator[Names]:
    """The names of T5-XXL's encoder; the arguments are those of `clip`."""
    paths = [f"encoder.block.{INDEX}.{name}" for name in _T5_BLOCK]
    yield from _encoder(T5, paths, kohya, diffusers, range(_T5_BLOCKS))
    yield from _encoder(T5, _T5_FRAME, kohya, diffusers)


def fits(modules: Sequence[Module]) -> bool:
    """Whether no attention of a text encoder has a width known to be another encoder's."""
    for module in modules:
        weight = module.target.weight
        child = weight.removeprefix(TEXT_ENCODERS).partition(".")[0]
        if not module.target.is_clip or child not in WIDTHS or not weight.endswith(_ATTENTION):
            continue
        if module.inputs != WIDTHS[child] and module.inputs in WIDTHS.values():
            return False
    return True


def _listed(encoder: Encoder) -> Iterator[Names]:
    for one in listed(encoder.child):
        path = one.path.removeprefix(f"{encoder.child}.").removeprefix("transformer.")
        inner = next((path.removeprefix(outer) for outer in _OUTER if path.startswith(outer)), path)
        first, *rest = (prefix + flat(name) for name in (path, inner) for prefix in encoder.kohya)
        yield Names(
            Target(TEXT_ENCODERS + one.path),
            TEXT_ENCODERS + one.path,
            first,
            f"{encoder.diffusers}.{path}",
            (f"{encoder.diffusers}.{inner}", *rest),
            blocks=one.blocks,
        )


def _encoder(
    child: str, paths: Sequence[str], kohya: tuple[str, ...], diffusers: str, blocks: range | None = None
) -> Iterator[Names]:
    for path in paths:
        weight = f"{TEXT_ENCODERS}{child}.transformer.{path}"
        first, *rest = (prefix + flat(path) for prefix in kohya)
        yield Names(Target(weight), weight, first, f"{diffusers}.{path}", tuple(rest), blocks=blocks)
