"""Tiny models of ComfyUI's own classes: the block layout and names of real SD 1.5, SDXL and Flux, a few MB.

Every parameter is seeded by its own name, so a model is the same in every process and version. A weight's
scale is `1 / sqrt(fan in)`, which keeps activations, and so the sampling, of ordinary size.
"""

import hashlib
import math
from collections.abc import Callable
from typing import NamedTuple

import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.sd1_clip
import comfy.sdxl_clip
import comfy.supported_models
import comfy.supported_models_base
import comfy.text_encoders.flux
import torch

from lora_alloy_testing.comfy_configs import FLUX, UNET, flux_settings

CLIP_L_WIDTH, CLIP_G_WIDTH, T5_WIDTH = 64, 96, 64
SIZE_EMBEDDINGS_WIDTH = 6 * 256  # SDXL appends six of them to the pooled text

_UNET = {**UNET, "model_channels": 32}
_SD15 = _UNET | {
    "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 2, 2, 2],
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "transformer_depth_middle": 1,
    "context_dim": CLIP_L_WIDTH,
    "use_linear_in_transformer": False,
    "adm_in_channels": None,
}
_SDXL = _UNET | {
    "num_res_blocks": [2, 2, 2],
    "channel_mult": [1, 2, 4],
    "transformer_depth": [0, 0, 1, 1, 2, 2],
    "transformer_depth_output": [0, 0, 0, 1, 1, 1, 2, 2, 2],
    "transformer_depth_middle": 2,
    "context_dim": CLIP_L_WIDTH + CLIP_G_WIDTH,
    "use_linear_in_transformer": True,
    "num_classes": "sequential",
    "adm_in_channels": CLIP_G_WIDTH + SIZE_EMBEDDINGS_WIDTH,
}
_FLUX = {
    **FLUX,
    "vec_in_dim": CLIP_L_WIDTH,
    "context_in_dim": T5_WIDTH,
    "hidden_size": 128,
    "num_heads": 2,
    "depth": 2,
    "depth_single_blocks": 2,
    "axes_dim": [16, 24, 24],
}


def _flux() -> comfy.supported_models_base.BASE:
    from comfy.ldm.flux.model import FluxParams

    return comfy.supported_models.Flux(flux_settings(_FLUX, FluxParams.__dataclass_fields__))


class _Family(NamedTuple):
    config: Callable[[], comfy.supported_models_base.BASE]
    tokenizer: type
    encoder: Callable[..., torch.nn.Module]


FAMILIES = {
    "sd15": _Family(
        lambda: comfy.supported_models.SD15(dict(_SD15)),
        comfy.sd1_clip.SD1Tokenizer,
        comfy.sd1_clip.SD1ClipModel,
    ),
    "sdxl": _Family(
        lambda: comfy.supported_models.SDXL(dict(_SDXL)),
        comfy.sdxl_clip.SDXLTokenizer,
        comfy.sdxl_clip.SDXLClipModel,
    ),
    "flux": _Family(
        _flux,
        comfy.text_encoders.flux.FluxTokenizer,
        comfy.text_encoders.flux.flux_clip(dtype_t5=torch.float32),
    ),
}


def _clip_sizes(width: int) -> dict[str, int]:
    # SDXL reads the layer before the last, so three is the least
    layers = {"num_attention_heads": 2, "num_hidden_layers": 3}
    return layers | {"hidden_size": width, "intermediate_size": 2 * width, "projection_dim": width}


_TEXT_OPTIONS = {
    "dtype": torch.float32,
    "clip_l_model_config": _clip_sizes(CLIP_L_WIDTH),
    "clip_g_model_config": _clip_sizes(CLIP_G_WIDTH),
    "t5xxl_model_config": {"d_ff": 128, "d_kv": 16, "d_model": T5_WIDTH, "num_heads": 4, "num_layers": 2},
}


def _fill(module: torch.nn.Module, seed: int) -> None:
    """Give every parameter of `module` noise of its own, whatever the order they come in."""
    for name, parameter in module.named_parameters():
        owner, _, kind = name.rpartition(".")
        kind = "weight" if kind == "scale" else kind  # Flux's norms were renamed in ComfyUI 0.14
        digest = hashlib.sha256(f"{seed} {owner}.{kind}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            noise /= math.sqrt(parameter[0].numel())
        elif kind == "weight":
            noise = 1 + 0.1 * noise
        else:
            noise *= 0.02
        parameter.requires_grad_(False)
        parameter.copy_(noise)


def build(family: str, seed: int) -> tuple[comfy.model_patcher.ModelPatcher, comfy.sd.CLIP]:
    """A tiny model of `family` and its text encoders, in float32."""
    parts = FAMILIES[family]
    config = parts.config()
    config.set_inference_dtype(torch.float32, None)
    offload = comfy.model_management.unet_offload_device()
    model = config.get_model({}, "", device=offload)
    target = comfy.supported_models_base.ClipTarget(parts.tokenizer, parts.encoder)
    clip = comfy.sd.CLIP(target, model_options=dict(_TEXT_OPTIONS))
    with torch.no_grad():
        _fill(model.eval(), seed)
        _fill(clip.cond_stage_model.eval(), seed)
    device = comfy.model_management.get_torch_device()
    return comfy.model_patcher.ModelPatcher(model, load_device=device, offload_device=offload), clip


class AlloyTestModel:
    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, tuple]]:  # noqa: N802
        return {"required": {"family": (list(FAMILIES),), "seed": ("INT", {"default": 0, "min": 0})}}

    RETURN_TYPES = ("MODEL", "CLIP")
    FUNCTION = "build"
    CATEGORY = "alloy test"

    def build(self, family: str, seed: int) -> tuple[comfy.model_patcher.ModelPatcher, comfy.sd.CLIP]:
        return build(family, seed)
