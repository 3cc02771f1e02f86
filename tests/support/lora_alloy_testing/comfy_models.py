"""ComfyUI's own models at their released sizes, on the `meta` device: the source of names, shapes and key maps.

Imported in a process whose `sys.path` starts with a ComfyUI checkout. A family is one or more builds, since its
variants have modules of their own: Wan reads images, controls or sound. A build that this version of ComfyUI has no class
for is left out.
"""

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

Config = dict[str, Any]


@dataclass(frozen=True)
class Build:
    """A class of `comfy.supported_models`, its configuration, and how its text encoders are made.

    `encoder` is a module of `comfy`, a name in it, and the arguments of the factory it names; without arguments the name
    is the class itself. `device` is `cpu` where the model reads values while it is made; its weights are never written, so
    they take no memory there either.
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


_UNET: Config = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "use_spatial_transformer": True,
    "legacy": False,
    "use_checkpoint": False,
    "use_temporal_attention": False,
    "use_temporal_resblock": False,
    "model_channels": 320,
}
_SD = _UNET | {
    "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 2, 4, 4],
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "transformer_depth_middle": 1,
    "num_heads": 8,
    "adm_in_channels": None,
}
_SDXL = _UNET | {
    "num_res_blocks": [2, 2, 2],
    "channel_mult": [1, 2, 4],
    "transformer_depth": [0, 0, 2, 2, 10, 10],
    "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
    "transformer_depth_middle": 10,
    "context_dim": 2048,
    "use_linear_in_transformer": True,
    "num_classes": "sequential",
    "num_head_channels": 64,
    "adm_in_channels": 2816,
}
_FLUX = {
    "image_model": "flux",
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "vec_in_dim": 768,
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 19,
    "depth_single_blocks": 38,
    "axes_dim": [16, 56, 56],
    "theta": 10000,
    "qkv_bias": True,
    "guidance_embed": True,
    "txt_ids_dims": [],
}
_CHROMA = _FLUX | {
    "image_model": "chroma",
    "in_channels": 64,
    "out_channels": 64,
    "in_dim": 64,
    "out_dim": 3072,
    "hidden_dim": 5120,
    "n_layers": 5,
    "vec_in_dim": None,
}


def _flux2(hidden: int, double: int, single: int, context: int, guidance: bool) -> Config:
    return _FLUX | {
        "image_model": "flux2",
        "in_channels": 128,
        "out_channels": 128,
        "patch_size": 1,
        "vec_in_dim": None,
        "context_in_dim": context,
        "hidden_size": hidden,
        "mlp_ratio": 3.0,
        "num_heads": hidden // 128,
        "depth": double,
        "depth_single_blocks": single,
        "axes_dim": [32, 32, 32, 32],
        "theta": 2000,
        "qkv_bias": False,
        "guidance_embed": guidance,
        "global_modulation": True,
        "mlp_silu_act": True,
        "ops_bias": False,
        "default_ref_method": "index",
        "ref_index_scale": 10.0,
        "txt_ids_dims": [3],
    }


def _sd3(depth: int, positions: int, dual: list[int], norm: str | None) -> Config:
    return {
        "in_channels": 16,
        "out_channels": 16,
        "patch_size": 2,
        "depth": depth,
        "input_size": None,
        "adm_in_channels": 2048,
        "context_embedder_config": {
            "target": "torch.nn.Linear",
            "params": {"in_features": 4096, "out_features": 64 * depth},
        },
        "num_patches": positions**2,
        "pos_embed_max_size": positions,
        "pos_embed_scaling_factor": None,
        "x_block_self_attn_layers": dual,
        "qk_norm": norm,
    }


def _wan(kind: str, dim: int, ffn: int, layers: int, **more: Any) -> Config:
    return {
        "image_model": "wan2.1",
        "model_type": kind,
        "dim": dim,
        "ffn_dim": ffn,
        "num_heads": dim // 128,
        "num_layers": layers,
        "in_dim": 16,
        "out_dim": 16,
        "patch_size": (1, 2, 2),
        "freq_dim": 256,
        "window_size": (-1, -1),
        "qk_norm": True,
        "cross_attn_norm": True,
        "eps": 1e-6,
    } | more


_LUMINA: Config = {
    "image_model": "lumina2",
    "patch_size": 2,
    "in_channels": 16,
    "dim": 2304,
    "cap_feat_dim": 2304,
    "n_layers": 26,
    "qk_norm": True,
    "n_heads": 24,
    "n_kv_heads": 8,
    "axes_dims": [32, 32, 32],
    "axes_lens": [300, 512, 512],
    "rope_theta": 10000.0,
    "ffn_dim_multiplier": 4.0,
}
_Z_IMAGE = _LUMINA | {
    "dim": 3840,
    "cap_feat_dim": 2560,
    "n_layers": 30,
    "n_heads": 30,
    "n_kv_heads": 30,
    "axes_dims": [32, 48, 48],
    "axes_lens": [1536, 512, 512],
    "rope_theta": 256.0,
    "ffn_dim_multiplier": 8 / 3,
    "z_image_modulation": True,
    "time_scale": 1000.0,
    "pad_tokens_multiple": 32,
}
_HUNYUAN: Config = {
    "image_model": "hunyuan_video",
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": [1, 2, 2],
    "vec_in_dim": 768,
    "axes_dim": [16, 56, 56],
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 20,
    "depth_single_blocks": 40,
    "theta": 256,
    "qkv_bias": True,
    "guidance_embed": True,
    "meanflow": False,
    "byt5": False,
    "use_cond_type_embedding": False,
    "vision_in_dim": None,
    "meanflow_sum": False,
}
_HUNYUAN_IMAGE = _HUNYUAN | {
    "in_channels": 64,
    "out_channels": 64,
    "patch_size": [1, 1],
    "vec_in_dim": None,
    "axes_dim": [64, 64],
    "context_in_dim": 3584,
    "hidden_size": 3584,
    "num_heads": 28,
    "guidance_embed": False,
    "byt5": True,
}
_HUNYUAN_15 = _HUNYUAN | {
    "in_channels": 65,
    "out_channels": 32,
    "patch_size": [1, 1, 1],
    "vec_in_dim": None,
    "context_in_dim": 3584,
    "hidden_size": 2048,
    "num_heads": 16,
    "depth": 54,
    "depth_single_blocks": 0,
    "guidance_embed": False,
    "byt5": True,
    "use_cond_type_embedding": True,
    "vision_in_dim": 1152,
    "meanflow_sum": True,
}
_HIDREAM: Config = {
    "image_model": "hidream",
    "attention_head_dim": 128,
    "axes_dims_rope": [64, 32, 32],
    "caption_channels": [4096, 4096],
    "max_resolution": [128, 128],
    "in_channels": 16,
    "out_channels": 16,
    "llama_layers": [*range(32), *[31] * 16],
    "num_attention_heads": 20,
    "num_routed_experts": 4,
    "num_activated_experts": 2,
    "num_layers": 16,
    "num_single_layers": 32,
    "patch_size": 2,
    "text_emb_dim": 2048,
}
_MOCHI: Config = {
    "image_model": "mochi_preview",
    "depth": 48,
    "patch_size": 2,
    "num_heads": 24,
    "hidden_size_x": 3072,
    "hidden_size_y": 1536,
    "mlp_ratio_x": 4.0,
    "mlp_ratio_y": 4.0,
    "learn_sigma": False,
    "in_channels": 12,
    "qk_norm": True,
    "qkv_bias": False,
    "out_bias": True,
    "attn_drop": 0.0,
    "patch_embed_bias": True,
    "posenc_preserve_area": True,
    "timestep_mlp_bias": True,
    "attend_to_padding": False,
    "timestep_scale": 1000.0,
    "use_t5": True,
    "t5_feat_dim": 4096,
    "t5_token_length": 256,
    "rope_theta": 10000.0,
}
_ACE: Config = {
    "audio_model": "ace",
    "attention_head_dim": 128,
    "in_channels": 8,
    "inner_dim": 2560,
    "max_height": 16,
    "max_position": 32768,
    "max_width": 32768,
    "mlp_ratio": 2.5,
    "num_attention_heads": 20,
    "num_layers": 24,
    "out_channels": 8,
    "patch_size": [16, 1],
    "rope_theta": 1000000.0,
    "speaker_embedding_dim": 512,
    "text_embedding_dim": 768,
    "ssl_encoder_depths": [8, 8],
    "ssl_latent_dims": [1024, 768],
    "ssl_names": ["mert", "m-hubert"],
    "lyric_encoder_vocab_size": 6693,
    "lyric_hidden_size": 1024,
}
_OMNIGEN: Config = {
    "image_model": "omnigen2",
    "axes_dim_rope": [40, 40, 40],
    "axes_lens": [1024, 1664, 1664],
    "ffn_dim_multiplier": None,
    "hidden_size": 2520,
    "in_channels": 16,
    "multiple_of": 256,
    "norm_eps": 1e-05,
    "num_attention_heads": 21,
    "num_kv_heads": 7,
    "num_layers": 32,
    "num_refiner_layers": 2,
    "out_channels": None,
    "patch_size": 2,
    "text_feat_dim": 2048,
    "timestep_scale": 1000.0,
}
_ANIMA: Config = {
    "image_model": "anima",
    "max_img_h": 240,
    "max_img_w": 240,
    "max_frames": 128,
    "in_channels": 16,
    "out_channels": 16,
    "patch_spatial": 2,
    "patch_temporal": 1,
    "model_channels": 2048,
    "concat_padding_mask": True,
    "crossattn_emb_channels": 1024,
    "pos_emb_cls": "rope3d",
    "pos_emb_learnable": True,
    "pos_emb_interpolation": "crop",
    "min_fps": 1,
    "max_fps": 30,
    "use_adaln_lora": True,
    "adaln_lora_dim": 256,
    "num_blocks": 28,
    "num_heads": 16,
    "extra_per_block_abs_pos_emb": False,
    "rope_h_extrapolation_ratio": 4.0,
    "rope_w_extrapolation_ratio": 4.0,
    "rope_t_extrapolation_ratio": 1.0,
    "extra_h_extrapolation_ratio": 1.0,
    "extra_w_extrapolation_ratio": 1.0,
    "extra_t_extrapolation_ratio": 1.0,
    "rope_enable_fps_modulation": False,
}


def _kandinsky(dim: int, ff: int, text: int, visual: int, time: int) -> Config:
    return {
        "image_model": "kandinsky5",
        "model_dim": dim,
        "axes_dims": (16, 24, 24) if dim == 1792 else (32, 48, 48),
        "time_dim": time,
        "ff_dim": ff,
        "visual_embed_dim": 132 if dim != 2560 else 64,
        "num_text_blocks": text,
        "num_visual_blocks": visual,
    }


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
            _SD | {"context_dim": 768, "use_linear_in_transformer": False},
            ("sd1_clip", "SD1ClipModel", None),
        ),
    ),
    "sd2": (
        Build(
            "SD20",
            _SD | {"context_dim": 1024, "use_linear_in_transformer": True},
            ("text_encoders.sd2_clip", "SD2ClipModel", None),
        ),
    ),
    "sdxl": (Build("SDXL", _SDXL, ("sdxl_clip", "SDXLClipModel", None)),),
    "flux": (Build("Flux", _FLUX, ("text_encoders.flux", "flux_clip", {"dtype_t5": torch.float32})),),
    "chroma": (Build("Chroma", _CHROMA, _T5),),
    "flux2": (Build("Flux2", _flux2(6144, 8, 48, 15360, True), ("text_encoders.flux", "flux2_te", {})),),
    "klein_4b": (Build("Flux2", _flux2(3072, 5, 20, 7680, False), _klein("4b")),),
    "klein_9b": (Build("Flux2", _flux2(4096, 8, 24, 12288, False), _klein("8b")),),
    "sd3": (Build("SD3", _sd3(24, 192, [], None), _SD3_TEXT),),
    "sd35_medium": (Build("SD3", _sd3(24, 384, [*range(13)], "rms"), _SD3_TEXT),),
    "sd35_large": (Build("SD3", _sd3(38, 192, [], "rms"), _SD3_TEXT),),
    "lumina2": (Build("Lumina2", _LUMINA, ("text_encoders.lumina2", "te", {})),),
    "z_image": (Build("ZImage", _Z_IMAGE, ("text_encoders.z_image", "te", {})),),
    "wan_1_3b": (
        Build("WAN21_T2V", _wan("t2v", 1536, 8960, 30), _WAN_TEXT),
        Build("WAN21_I2V", _wan("i2v", 1536, 8960, 30, in_dim=36)),
        Build("WAN21_Camera", _wan("camera", 1536, 8960, 30, in_dim=32)),
        Build("WAN21_Vace", _wan("vace", 1536, 8960, 30, vace_layers=15, vace_in_dim=96)),
    ),
    "wan_5b": (
        Build("WAN22_T2V", _wan("t2v", 3072, 14336, 30, in_dim=48, out_dim=48), _WAN_TEXT),
        Build("WAN22_Camera", _wan("camera_2.2", 3072, 14336, 30, in_dim=100, out_dim=48)),
    ),
    "wan_14b": (
        Build("WAN21_T2V", _wan("t2v", 5120, 13824, 40), _WAN_TEXT),
        Build("WAN21_I2V", _wan("i2v", 5120, 13824, 40, in_dim=36, in_dim_ref_conv=16)),
        Build("WAN21_Camera", _wan("camera", 5120, 13824, 40, in_dim=32)),
        Build("WAN21_Vace", _wan("vace", 5120, 13824, 40, vace_layers=8, vace_in_dim=96)),
        Build("WAN21_HuMo", _wan("humo", 5120, 13824, 40, in_dim=36)),
        Build("WAN22_S2V", _wan("s2v", 5120, 13824, 40)),
        Build("WAN22_Animate", _wan("animate", 5120, 13824, 40, in_dim=36)),
    ),
    "qwen_image": (
        Build("QwenImage", {"image_model": "qwen_image", "in_channels": 64, "num_layers": 60}, _QWEN_TEXT),
    ),
    "hunyuan_video": (
        Build("HunyuanVideo", _HUNYUAN, ("text_encoders.hunyuan_video", "hunyuan_video_clip", {})),
    ),
    "hunyuan_image": (
        Build("HunyuanImage21", _HUNYUAN_IMAGE, ("text_encoders.hunyuan_image", "te", {})),
        Build("HunyuanImage21", _HUNYUAN_IMAGE | {"guidance_embed": True, "meanflow": True}),
    ),
    "hunyuan_video_15": (
        Build("HunyuanVideo15", _HUNYUAN_15, ("text_encoders.hunyuan_image", "te", {})),
        Build("HunyuanVideo15", _HUNYUAN_15 | {"meanflow": True}),
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
    "mochi": (Build("GenmoMochi", _MOCHI, ("text_encoders.genmo", "mochi_te", {})),),
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
            _HIDREAM,
            ("text_encoders.hidream", "hidream_clip", {"clip_l": True, "clip_g": True, "t5": True, "llama": True}),
        ),
    ),
    "ace_step": (Build("ACEStep", _ACE, ("text_encoders.ace", "AceT5Model", None)),),
    "ace_step_15": (Build("ACEStep15", {"audio_model": "ace1.5"}, ("text_encoders.ace15", "te", {}), "cpu"),),
    "omnigen2": (Build("Omnigen2", _OMNIGEN, ("text_encoders.omnigen2", "te", {})),),
    "kandinsky5_lite": (Build("Kandinsky5", _kandinsky(1792, 7168, 2, 32, 512), _KANDINSKY_TEXT),),
    "kandinsky5_pro": (Build("Kandinsky5", _kandinsky(4096, 16384, 4, 60, 1024), _KANDINSKY_TEXT),),
    "kandinsky5_image": (Build("Kandinsky5Image", _kandinsky(2560, 10240, 2, 50, 512), _KANDINSKY_TEXT),),
    "anima": (Build("Anima", _ANIMA, ("text_encoders.anima", "te", {})),),
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
