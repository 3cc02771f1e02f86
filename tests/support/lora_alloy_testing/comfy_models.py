"""ComfyUI's own models at their released sizes, on the `meta` device: the source of names, shapes and key maps.

Imported in a process whose `sys.path` starts with a ComfyUI checkout. A family is one or more builds, since its
variants have modules of their own: Wan reads images, controls or sound. A build that this version of ComfyUI has
no class for is left out.
"""

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from . import released_configs as sizes
from .comfy_configs import FLUX
from .released_configs import Config


@dataclass(frozen=True)
class Build:
    """A class of `comfy.supported_models`, its configuration, and how its text encoders are made.

    `encoder` is a module of `comfy`, a name in it, and the arguments of the factory it names; without arguments the
    name is the class itself. `device` is `cpu` where the model reads values while it is made; its weights are never
    written, so they take no memory there either.
    """

    model: str
    config: Config
    encoder: tuple[str, str, Config | None] | None = None
    device: str = "meta"


@dataclass
class Built:
    """What a build gave: the model, and its text encoders, if it names any."""

    model: Any
    encoders: Any = field(default=None)


_T5 = ("text_encoders.pixart_t5", "pixart_te", {})
_SD3_TEXT = ("text_encoders.sd3_clip", "sd3_clip", {"clip_l": True, "clip_g": True, "t5": True})
_WAN_TEXT = ("text_encoders.wan", "te", {})
_QWEN_TEXT = ("text_encoders.qwen_image", "te", {})
_KANDINSKY_TEXT = ("text_encoders.kandinsky5", "te", {})


def _klein(size: str) -> tuple[str, str, Config]:
    return "text_encoders.flux", "klein_te", {"model_type": f"qwen3_{size}"}


BUILDS: dict[str, tuple[Build, ...]] = {
    "sd15": (
        Build(
            "SD15",
            sizes.SD | {"context_dim": 768, "use_linear_in_transformer": False},
            ("sd1_clip", "SD1ClipModel", None),
        ),
    ),
    "sd2": (
        Build(
            "SD20",
            sizes.SD | {"context_dim": 1024, "use_linear_in_transformer": True},
            ("text_encoders.sd2_clip", "SD2ClipModel", None),
        ),
    ),
    "sdxl": (Build("SDXL", sizes.SDXL, ("sdxl_clip", "SDXLClipModel", None)),),
    "flux": (Build("Flux", dict(FLUX), ("text_encoders.flux", "flux_clip", {"dtype_t5": torch.float32})),),
    "chroma": (Build("Chroma", sizes.CHROMA, _T5),),
    "flux2": (Build("Flux2", sizes.flux2(6144, 8, 48, 15360, True), ("text_encoders.flux", "flux2_te", {})),),
    "klein_4b": (Build("Flux2", sizes.flux2(3072, 5, 20, 7680, False), _klein("4b")),),
    "klein_9b": (Build("Flux2", sizes.flux2(4096, 8, 24, 12288, False), _klein("8b")),),
    "sd3": (Build("SD3", sizes.sd3(24, 192, [], None), _SD3_TEXT),),
    "sd35_medium": (Build("SD3", sizes.sd3(24, 384, [*range(13)], "rms"), _SD3_TEXT),),
    "sd35_large": (Build("SD3", sizes.sd3(38, 192, [], "rms"), _SD3_TEXT),),
    "lumina2": (Build("Lumina2", sizes.LUMINA, ("text_encoders.lumina2", "te", {})),),
    "z_image": (Build("ZImage", sizes.Z_IMAGE, ("text_encoders.z_image", "te", {})),),
    "wan_1_3b": (
        Build("WAN21_T2V", sizes.wan("t2v", 1536, 8960, 30), _WAN_TEXT),
        Build("WAN21_I2V", sizes.wan("i2v", 1536, 8960, 30, in_dim=36)),
        Build("WAN21_Camera", sizes.wan("camera", 1536, 8960, 30, in_dim=32)),
        Build("WAN21_Vace", sizes.wan("vace", 1536, 8960, 30, vace_layers=15, vace_in_dim=96)),
    ),
    "wan_5b": (
        Build("WAN22_T2V", sizes.wan("t2v", 3072, 14336, 30, in_dim=48, out_dim=48), _WAN_TEXT),
        Build("WAN22_Camera", sizes.wan("camera_2.2", 3072, 14336, 30, in_dim=100, out_dim=48)),
    ),
    "wan_14b": (
        Build("WAN21_T2V", sizes.wan("t2v", 5120, 13824, 40), _WAN_TEXT),
        Build("WAN21_I2V", sizes.wan("i2v", 5120, 13824, 40, in_dim=36, in_dim_ref_conv=16)),
        Build("WAN21_Camera", sizes.wan("camera", 5120, 13824, 40, in_dim=32)),
        Build("WAN21_Vace", sizes.wan("vace", 5120, 13824, 40, vace_layers=8, vace_in_dim=96)),
        Build("WAN21_HuMo", sizes.wan("humo", 5120, 13824, 40, in_dim=36)),
        Build("WAN22_S2V", sizes.wan("s2v", 5120, 13824, 40)),
        Build("WAN22_Animate", sizes.wan("animate", 5120, 13824, 40, in_dim=36)),
    ),
    "qwen_image": (
        Build("QwenImage", {"image_model": "qwen_image", "in_channels": 64, "num_layers": 60}, _QWEN_TEXT),
    ),
    "hunyuan_video": (
        Build("HunyuanVideo", sizes.HUNYUAN, ("text_encoders.hunyuan_video", "hunyuan_video_clip", {})),
    ),
    "hunyuan_image": (
        Build("HunyuanImage21", sizes.HUNYUAN_IMAGE, ("text_encoders.hunyuan_image", "te", {})),
        Build("HunyuanImage21", sizes.HUNYUAN_IMAGE | {"guidance_embed": True, "meanflow": True}),
    ),
    "hunyuan_video_15": (
        Build("HunyuanVideo15", sizes.HUNYUAN_15, ("text_encoders.hunyuan_image", "te", {})),
        Build("HunyuanVideo15", sizes.HUNYUAN_15 | {"meanflow": True}),
    ),
    "ltx": (
        Build(
            "LTXV",
            {
                "image_model": "ltxv",
                "num_layers": 28,
                "attention_head_dim": 64,
                "cross_attention_dim": 2048,
            },
            ("text_encoders.lt", "ltxv_te", {}),
        ),
    ),
    "ltx_13b": (
        Build(
            "LTXV",
            {
                "image_model": "ltxv",
                "num_layers": 48,
                "attention_head_dim": 128,
                "cross_attention_dim": 4096,
            },
            ("text_encoders.lt", "ltxv_te", {}),
        ),
    ),
    "ltx2": (
        Build(
            "LTXAV",
            {
                "image_model": "ltxav",
                "num_layers": 48,
                "attention_head_dim": 128,
                "cross_attention_dim": 4096,
            },
            ("text_encoders.lt", "ltxav_te", {}),
        ),
    ),
    "auraflow": (
        Build(
            "AuraFlow",
            {
                "max_seq": 9216,
                "cond_seq_dim": 2048,
                "n_double_layers": 4,
                "n_layers": 36,
            },
            ("text_encoders.aura_t5", "AuraT5Model", None),
        ),
    ),
    "pixart": (
        Build(
            "PixArtAlpha",
            {
                "image_model": "pixart_alpha",
                "num_heads": 16,
                "patch_size": 2,
                "hidden_size": 1152,
                "in_channels": 4,
                "depth": 28,
                "micro_condition": True,
                "model_max_length": 120,
                "input_size": 128,
            },
            _T5,
        ),
        Build(
            "PixArtSigma",
            {
                "image_model": "pixart_sigma",
                "num_heads": 16,
                "patch_size": 2,
                "hidden_size": 1152,
                "in_channels": 4,
                "depth": 28,
                "micro_condition": False,
                "model_max_length": 300,
                "input_size": 128,
            },
        ),
    ),
    "hunyuan_dit": (
        Build(
            "HunyuanDiT",
            {"image_model": "hydit", "depth": 40, "hidden_size": 1408, "mlp_ratio": 4.3637},
            ("text_encoders.hydit", "HyditModel", None),
        ),
    ),
    "mochi": (Build("GenmoMochi", sizes.MOCHI, ("text_encoders.genmo", "mochi_te", {})),),
    "cascade": (
        Build(
            "Stable_Cascade_C",
            {"stable_cascade_stage": "c", "c_cond": 2048},
            ("sdxl_clip", "StableCascadeClipModel", None),
        ),
    ),
    "hidream": (
        Build(
            "HiDream",
            sizes.HIDREAM,
            (
                "text_encoders.hidream",
                "hidream_clip",
                {"clip_l": True, "clip_g": True, "t5": True, "llama": True},
            ),
        ),
    ),
    "ace_step": (Build("ACEStep", sizes.ACE, ("text_encoders.ace", "AceT5Model", None)),),
    "ace_step_15": (Build("ACEStep15", {"audio_model": "ace1.5"}, ("text_encoders.ace15", "te", {}), "cpu"),),
    "omnigen2": (Build("Omnigen2", sizes.OMNIGEN, ("text_encoders.omnigen2", "te", {})),),
    "kandinsky5_lite": (Build("Kandinsky5", sizes.kandinsky(1792, 7168, 2, 32, 512), _KANDINSKY_TEXT),),
    "kandinsky5_pro": (Build("Kandinsky5", sizes.kandinsky(4096, 16384, 4, 60, 1024), _KANDINSKY_TEXT),),
    "kandinsky5_image": (
        Build("Kandinsky5Image", sizes.kandinsky(2560, 10240, 2, 50, 512), _KANDINSKY_TEXT),
    ),
    "anima": (Build("Anima", sizes.ANIMA, ("text_encoders.anima", "te", {})),),
}


def built(family: str) -> Iterator[Built]:
    """Every build of a family that this ComfyUI has, its weights on the `meta` device."""
    supported = importlib.import_module("comfy.supported_models")
    for build in BUILDS[family]:
        kind = getattr(supported, build.model, None)
        if kind is None:
            continue
        config = kind(_known_to(build))
        config.set_inference_dtype(torch.float32, None)
        made = Built(config.get_model({}, "", device=build.device))
        if build.encoder is not None:
            made.encoders = _encoders(*build.encoder)
        yield made


def _encoders(module: str, name: str, arguments: Config | None) -> Any:
    found = getattr(importlib.import_module(f"comfy.{module}"), name)
    kind = found if arguments is None else found(**arguments)
    return kind(device="meta", dtype=torch.float32)


_KNOWERS = {
    "Flux": "flux.model.FluxParams",
    "Chroma": "chroma.model.ChromaParams",
    "Lumina2": "lumina.model.NextDiT",
    "HunyuanVideo": "hunyuan_video.model.HunyuanVideoParams",
    "HunyuanImage21": "hunyuan_video.model.HunyuanVideoParams",
}


def _known_to(build: Build) -> Config:
    """The configuration without what this version of the model does not know."""
    if build.model not in _KNOWERS:
        return dict(build.config)
    module, _, name = _KNOWERS[build.model].rpartition(".")
    taken = inspect.signature(getattr(importlib.import_module(f"comfy.ldm.{module}"), name)).parameters
    return {name: value for name, value in build.config.items() if name in taken or name == "image_model"}
