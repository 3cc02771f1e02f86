"""Files as trainers of 2024 to 2026 write them, a few modules of each: the family, and where every module leads.

Widths are those of the released models. Names and targets are typed in, `path[rows]` for the parts of a fused weight.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy.lora.stack import Entry, build_stack

KOHYA = (".lora_up.weight", ".lora_down.weight")
PEFT = (".lora_B.weight", ".lora_A.weight")
NAMED = (".lora_B.default.weight", ".lora_A.default.weight")
BARE = (".lora_B", ".lora_A")
LAYERS = (".lora.up.weight", ".lora.down.weight")
LINEAR = (".lora_linear_layer.up.weight", ".lora_linear_layer.down.weight")
PROCESSOR = ("_lora.up.weight", "_lora.down.weight")
TEXT = "text_encoders."


@dataclass(frozen=True)
class Released:
    """A file: its family, the endings of its factors, and module → size and target, without `diffusion_model.`."""

    family: str
    ends: tuple[str, str]
    modules: dict[str, tuple[tuple[int, int], str]]
    alpha: bool = False


CLIP = "text_model.encoder.layers"
SDXL = "down_blocks.1.attentions.0.transformer_blocks.0"
FILES = {
    "Wan 2.2 high noise, musubi": Released(
        "wan_14b",
        KOHYA,
        {
            "lora_unet_blocks_39_self_attn_q": ((5120, 5120), "blocks.39.self_attn.q"),
            "lora_unet_blocks_0_ffn_2": ((5120, 13824), "blocks.0.ffn.2"),
        },
        alpha=True,
    ),
    "Wan 2.1 image to video, ai-toolkit": Released(
        "wan_14b",
        PEFT,
        {"diffusion_model.blocks.39.cross_attn.k_img": ((5120, 5120), "blocks.39.cross_attn.k_img")},
    ),
    "Wan, DiffSynth": Released(
        "wan_1_3b",
        NAMED,
        {"pipe.dit.blocks.0.cross_attn.o": ((1536, 1536), "blocks.0.cross_attn.o")},
    ),
    "Wan 5B, finetrainers": Released(
        "wan_5b",
        PEFT,
        {
            "transformer.blocks.0.attn2.to_out.0": ((3072, 3072), "blocks.0.cross_attn.o"),
            "transformer.blocks.29.ffn.net.0.proj": ((14336, 3072), "blocks.29.ffn.0"),
        },
    ),
    "Wan-Fun": Released(
        "wan_1_3b", KOHYA, {"lora_unet__blocks_0_cross_attn_k": ((1536, 1536), "blocks.0.cross_attn.k")}
    ),
    "Qwen-Image-Edit, Lightning": Released(
        "qwen_image",
        KOHYA,
        {
            "transformer_blocks.59.attn.add_q_proj": ((3072, 3072), "transformer_blocks.59.attn.add_q_proj"),
            "transformer_blocks.0.img_mod.1": ((18432, 3072), "transformer_blocks.0.img_mod.1"),
        },
        alpha=True,
    ),
    "Qwen-Image, PEFT with its adapter's name": Released(
        "qwen_image",
        NAMED,
        {
            "transformer.transformer_blocks.0.img_mlp.net.0.proj": (
                (12288, 3072),
                "transformer_blocks.0.img_mlp.net.0.proj",
            )
        },
    ),
    "Z-Image, fused, saved by ComfyUI": Released(
        "z_image",
        KOHYA,
        {"diffusion_model.layers.0.attention.qkv": ((11520, 3840), "layers.0.attention.qkv")},
    ),
    "Z-Image, musubi as it trains": Released(
        "z_image",
        KOHYA,
        {"lora_unet_layers_0_attention_to_k": ((3840, 3840), "layers.0.attention.qkv[3840:7680]")},
    ),
    "Z-Image, ai-toolkit": Released(
        "z_image",
        PEFT,
        {
            "diffusion_model.layers.29.attention.to_v": ((3840, 3840), "layers.29.attention.qkv[7680:11520]"),
            "diffusion_model.layers.29.attention.to_out.0": ((3840, 3840), "layers.29.attention.out"),
        },
    ),
    "Chroma, kohya": Released(
        "chroma",
        KOHYA,
        {
            "lora_unet_double_blocks_18_img_attn_qkv": ((9216, 3072), "double_blocks.18.img_attn.qkv"),
            "lora_unet_distilled_guidance_layer_in_proj": ((5120, 64), "distilled_guidance_layer.in_proj"),
        },
        alpha=True,
    ),
    "Chroma, ai-toolkit": Released(
        "chroma",
        PEFT,
        {
            "diffusion_model.distilled_guidance_layer.layers.0.in_layer": (
                (5120, 5120),
                "distilled_guidance_layer.layers.0.in_layer",
            )
        },
    ),
    "HunyuanVideo, musubi as it trains": Released(
        "hunyuan_video",
        KOHYA,
        {
            "lora_unet_double_blocks_19_img_mlp_fc1": ((12288, 3072), "double_blocks.19.img_mlp.0"),
            "lora_unet_double_blocks_0_img_mod_linear": ((18432, 3072), "double_blocks.0.img_mod.lin"),
            "lora_unet_single_blocks_39_modulation_linear": ((9216, 3072), "single_blocks.39.modulation.lin"),
        },
        alpha=True,
    ),
    "LTX-2": Released(
        "ltx2",
        PEFT,
        {
            "diffusion_model.transformer_blocks.47.audio_attn1.to_q": (
                (2048, 2048),
                "transformer_blocks.47.audio_attn1.to_q",
            ),
            "diffusion_model.transformer_blocks.0.attn1.to_q": (
                (4096, 4096),
                "transformer_blocks.0.attn1.to_q",
            ),
        },
    ),
    "SD 3.5 Large with its text encoders, kohya": Released(
        "sd35_large",
        KOHYA,
        {
            "lora_unet_joint_blocks_37_x_block_attn_qkv": ((7296, 2432), "joint_blocks.37.x_block.attn.qkv"),
            f"lora_te1_{CLIP.replace('.', '_')}_0_mlp_fc1": (
                (3072, 768),
                f"{TEXT}clip_l.transformer.{CLIP}.0.mlp.fc1",
            ),
            f"lora_te2_{CLIP.replace('.', '_')}_31_mlp_fc1": (
                (5120, 1280),
                f"{TEXT}clip_g.transformer.{CLIP}.31.mlp.fc1",
            ),
            "lora_te3_encoder_block_23_layer_0_SelfAttention_q": (
                (4096, 4096),
                f"{TEXT}t5xxl.transformer.encoder.block.23.layer.0.SelfAttention.q",
            ),
        },
        alpha=True,
    ),
    "SD 3.5 Large, OneTrainer": Released(
        "sd35_large",
        KOHYA,
        {
            "lora_transformer_transformer_blocks_37_attn_to_k": (
                (2432, 2432),
                "joint_blocks.37.x_block.attn.qkv[2432:4864]",
            )
        },
        alpha=True,
    ),
    "Flux.2 klein, ai-toolkit": Released(
        "klein_4b",
        PEFT,
        {
            "diffusion_model.double_blocks.4.img_mlp.0": ((18432, 3072), "double_blocks.4.img_mlp.0"),
            "diffusion_model.double_stream_modulation_img.lin": (
                (18432, 3072),
                "double_stream_modulation_img.lin",
            ),
        },
    ),
    "Flux.2, diffusers": Released(
        "flux2",
        PEFT,
        {
            "transformer.single_transformer_blocks.47.attn.to_out": (
                (6144, 24576),
                "single_blocks.47.linear2",
            ),
            "transformer.transformer_blocks.7.ff.linear_in": ((36864, 6144), "double_blocks.7.img_mlp.0"),
        },
    ),
    "Flux.1, fal": Released(
        "flux",
        PEFT,
        {
            "base_model.model.double_blocks.0.img_mod.lin": ((18432, 3072), "double_blocks.0.img_mod.lin"),
            "base_model.model.single_blocks.37.linear1": ((21504, 3072), "single_blocks.37.linear1"),
        },
    ),
    "Lumina 2, diffusers": Released(
        "lumina2",
        PEFT,
        {
            "transformer.layers.25.attn.to_k": ((768, 2304), "layers.25.attention.qkv[2304:3072]"),
            "transformer.layers.0.feed_forward.linear_1": ((9216, 2304), "layers.0.feed_forward.w1"),
        },
    ),
    "Lumina 2 with Gemma, kohya": Released(
        "lumina2",
        KOHYA,
        {
            "lora_unet_layers_0_attention_qkv": ((3840, 2304), "layers.0.attention.qkv"),
            "lora_te_layers_0_self_attn_q_proj": (
                (2048, 2304),
                f"{TEXT}gemma2_2b.transformer.model.layers.0.self_attn.q_proj",
            ),
        },
        alpha=True,
    ),
    "AuraFlow": Released(
        "auraflow",
        PEFT,
        {
            "transformer.joint_transformer_blocks.3.attn.add_q_proj": (
                (3072, 3072),
                "double_layers.3.attn.w1q",
            ),
            "transformer.single_transformer_blocks.31.attn.to_q": ((3072, 3072), "single_layers.31.attn.w1q"),
        },
    ),
    "HiDream": Released(
        "hidream",
        PEFT,
        {
            "diffusion_model.double_stream_blocks.15.block.ff_i.shared_experts.w1": (
                (3584, 2560),
                "double_stream_blocks.15.block.ff_i.shared_experts.w1",
            )
        },
    ),
    "ACE-Step with its lyrics' encoder": Released(
        "ace_step",
        PEFT,
        {
            "transformer_blocks.23.cross_attn.to_k": ((2560, 2560), "transformer_blocks.23.cross_attn.to_k"),
            "lyric_encoder.encoders.0.self_attn.linear_q": (
                (1024, 1024),
                "lyric_encoder.encoders.0.self_attn.linear_q",
            ),
            "speaker_embedder": ((2560, 512), "speaker_embedder"),
        },
    ),
    "ACE-Step 1.5, raw PEFT": Released(
        "ace_step_15",
        PEFT,
        {
            "base_model.model.layers.23.cross_attn.v_proj": (
                (1024, 2048),
                "decoder.layers.23.cross_attn.v_proj",
            )
        },
    ),
    "Anima, kohya": Released(
        "anima",
        KOHYA,
        {
            "lora_unet_blocks_27_mlp_layer1": ((8192, 2048), "blocks.27.mlp.layer1"),
            "lora_unet_llm_adapter_blocks_5_mlp_2": ((1024, 4096), "llm_adapter.blocks.5.mlp.2"),
        },
        alpha=True,
    ),
    "Kandinsky 5": Released(
        "kandinsky5_lite",
        BARE,
        {
            "visual_transformer_blocks.31.self_attention.to_query": (
                (1792, 1792),
                "visual_transformer_blocks.31.self_attention.to_query",
            )
        },
    ),
    "SDXL, diffusers before its PEFT": Released(
        "sdxl",
        PROCESSOR,
        {
            f"unet.{SDXL}.attn2.processor.to_k": (
                (640, 2048),
                "input_blocks.4.1.transformer_blocks.0.attn2.to_k",
            )
        },
    ),
    "SDXL, diffusers' layers": Released(
        "sdxl",
        LAYERS,
        {f"unet.{SDXL}.attn2.to_v": ((640, 2048), "input_blocks.4.1.transformer_blocks.0.attn2.to_v")},
    ),
    "SDXL's text encoders, diffusers' linear layers": Released(
        "sdxl",
        LINEAR,
        {
            f"text_encoder_2.{CLIP}.31.self_attn.q_proj": (
                (1280, 1280),
                f"{TEXT}clip_g.transformer.{CLIP}.31.self_attn.q_proj",
            )
        },
    ),
    "SDXL, wrapped over and over": Released(
        "sdxl",
        NAMED,
        {
            f"module.base_model.model._orig_mod.unet.{SDXL}.attn2.to_k": (
                (640, 2048),
                "input_blocks.4.1.transformer_blocks.0.attn2.to_k",
            )
        },
    ),
}


def tensors_of(file: Released) -> dict[str, Tensor]:
    """Factors of rank 1."""
    made: dict[str, Tensor] = {}
    for name, ((outputs, inputs), _) in file.modules.items():
        made[name + file.ends[0]] = torch.zeros(outputs, 1)
        made[name + file.ends[1]] = torch.zeros(1, inputs)
        if file.alpha:
            made[f"{name}.alpha"] = torch.tensor(1.0)
    return made


def opened(file: Released, label: str = "ink") -> LoraFile:
    return lora_in_memory(label, tensors_of(file), {})


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_every_tensor_is_used_and_every_module_leads_where_it_should(file: Released):
    read = opened(file)
    assert {account.state for account in read.accounts} == {"used"}
    assert read.families[0].key == file.family
    targets = {
        str(group.target).removeprefix("diffusion_model.") for group in build_stack([Entry(read)]).groups
    }
    assert targets == {target for _, target in file.modules.values()}


WAN = ("Wan 2.2 high noise, musubi", "Wan 2.1 image to video, ai-toolkit")


def test_the_two_experts_of_wan_2_2_are_files_of_one_family():
    """Nothing in a file tells for which expert it was trained: whoever merges chooses."""
    stack = build_stack([Entry(opened(FILES[title], title)) for title in WAN])
    assert stack.family is not None and stack.family.key == "wan_14b"
    assert len(stack.groups) == 3
