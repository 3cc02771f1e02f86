"""How checkpoints name their weights: from a tensor's name to the parameter that it is, or is a part of.

Checkpoints of Stable Diffusion keep the text encoders under the names of the code they were trained with; the
larger CLIPs are OpenCLIP's, which fuses q, k and v. What ComfyUI saves and what stands alone bears ComfyUI's own
names, or diffusers'.
"""

import re
from dataclasses import dataclass

from .target import TEXT_ENCODERS


@dataclass(frozen=True)
class Place:
    """A parameter of a module, such as `….self_attn.q_proj` and `weight`, and which part of a tensor it is.

    Attributes:
        module: its path, with `diffusion_model.` or `text_encoders.` in front where the name tells.
        parameter: `weight` or `bias`.
        third: which third of the tensor's rows, None for all of them.
        is_transposed: whether the tensor is the transposed parameter.
    """

    module: str
    parameter: str
    third: int | None = None
    is_transposed: bool = False


_CLIP_L, _CLIP_G, _CLIP_H = (f"{TEXT_ENCODERS}{name}.transformer." for name in ("clip_l", "clip_g", "clip_h"))
_MODEL = ("model.diffusion_model.", "diffusion_model.")
_TRANSFORMERS = ("cond_stage_model.transformer.", "conditioner.embedders.0.transformer.")
_OPEN_CLIP = ("cond_stage_model.model.", "conditioner.embedders.0.model.", "conditioner.embedders.1.model.")
# Of no interest to a LoRA: autoencoder, averages, schedules.
_OTHERS = re.compile(
    r"^(first_stage_model|vae|model_ema|denoiser|embedder|noise_augmentor|cond_stage_model|conditioner|logit_scale)\."
)
_FRAME = {
    "token_embedding.weight": ("text_model.embeddings.token_embedding", False),
    "positional_embedding": ("text_model.embeddings.position_embedding", False),
    "text_projection": ("text_projection", True),
    "text_projection.weight": ("text_projection", False),
}
_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
_RESBLOCK = re.compile(r"^transformer\.resblocks\.(?P<layer>\d+)\.(?P<inner>.+)$")


def places(tensor_name: str, wide_clip: int = 0) -> list[Place]:
    """The parameters that a tensor holds; none if it is not a weight or a bias that a LoRA may change.

    Args:
        tensor_name: as in the file.
        wide_clip: the width of OpenCLIP's encoder, which tells CLIP-H (1024) from CLIP-G.
    """
    for prefix in _OPEN_CLIP:
        if tensor_name.startswith(prefix):
            is_second = prefix == _OPEN_CLIP[2]
            child = _CLIP_G if is_second or wide_clip > 1024 else _CLIP_H
            return _open_clip(tensor_name.removeprefix(prefix), child)
    module, _, parameter = tensor_name.rpartition(".")
    if parameter == "scale":  # as Flux calls the weight of a norm
        parameter = "weight"
    if not module or parameter not in ("weight", "bias"):
        return []
    for prefix in _MODEL:
        if module.startswith(prefix):
            return [Place(f"diffusion_model.{module.removeprefix(prefix)}", parameter)]
    for prefix in _TRANSFORMERS:
        if module.startswith(prefix):
            path = module.removeprefix(prefix)
            outer = "" if path.startswith(("text_model.", "text_projection")) else "text_model."
            return [Place(_CLIP_L + outer + path, parameter)]
    return [] if _OTHERS.match(module) else [Place(module, parameter)]


def _open_clip(name: str, child: str) -> list[Place]:
    if name in _FRAME:
        path, is_transposed = _FRAME[name]
        return [Place(child + path, "weight", None, is_transposed)]
    if name.startswith("ln_final."):
        return [Place(f"{child}text_model.final_layer_norm", name.removeprefix("ln_final."))]
    found = _RESBLOCK.match(name)
    if not found:
        return []
    layer, inner = f"{child}text_model.encoder.layers.{found['layer']}", found["inner"]
    if inner in ("attn.in_proj_weight", "attn.in_proj_bias"):
        parameter = inner.removeprefix("attn.in_proj_")
        return [
            Place(f"{layer}.self_attn.{one}_proj", parameter, third)
            for third, one in enumerate(("q", "k", "v"))
        ]
    module, _, parameter = inner.rpartition(".")
    return [Place(f"{layer}.{_BLOCK[module]}", parameter)] if module in _BLOCK else []
