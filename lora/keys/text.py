"""Text encoders: the names of CLIP's and T5's modules, and what their widths rule out."""

from collections.abc import Iterator, Sequence

from ..target import TEXT_ENCODERS, Target
from .names import Module, Names, flat

CLIP_L, CLIP_H, CLIP_G, T5 = "clip_l", "clip_h", "clip_g", "t5xxl"
WIDTHS = {CLIP_L: 768, CLIP_H: 1024, CLIP_G: 1280, T5: 4096}

_ATTENTION = (".self_attn.", ".SelfAttention.")
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


def clip(child: str, layers: int, *, kohya: tuple[str, ...], diffusers: str) -> Iterator[Names]:
    """The names of a CLIP text encoder that is the part `child` of ComfyUI's.

    Args:
        layers: 12 in CLIP-L, 24 in CLIP-H, 32 in CLIP-G.
        kohya: prefixes of the flattened names; the first is written, all are read.
        diffusers: what the pipeline calls this encoder, such as `text_encoder`.
    """
    paths = [f"text_model.encoder.layers.{layer}.{name}" for layer in range(layers) for name in _CLIP_LAYER]
    return _encoder(child, (*paths, *_CLIP_FRAME), kohya, diffusers)


def t5(*, kohya: tuple[str, ...], diffusers: str) -> Iterator[Names]:
    """The names of T5-XXL's encoder; the arguments are those of `clip`."""
    paths = [f"encoder.block.{block}.{name}" for block in range(_T5_BLOCKS) for name in _T5_BLOCK]
    return _encoder(T5, (*paths, *_T5_FRAME), kohya, diffusers)


def fits(modules: Sequence[Module]) -> bool:
    """Whether no attention of a text encoder has a width known to be another encoder's."""
    for module in modules:
        weight = module.target.weight
        if not module.target.is_clip or not any(name in weight for name in _ATTENTION):
            continue
        child = weight.removeprefix(TEXT_ENCODERS).partition(".")[0]
        if module.inputs != WIDTHS[child] and module.inputs in WIDTHS.values():
            return False
    return True


def _encoder(child: str, paths: Sequence[str], kohya: tuple[str, ...], diffusers: str) -> Iterator[Names]:
    for path in paths:
        weight = f"{TEXT_ENCODERS}{child}.transformer.{path}"
        first, *rest = (prefix + flat(path) for prefix in kohya)
        yield Names(Target(weight), weight, first, f"{diffusers}.{path}", tuple(rest))
