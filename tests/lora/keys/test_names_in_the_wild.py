"""Every way that trainers are known to name modules, typed in by hand: it leads where it should, the family is among
those found in it alone, and `docs/compatibility.md` has a row for it.
"""

import pytest
import torch

from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.keys import family, key_map, resolve
from lora_alloy.lora.target import Part, Route, Target
from lora_alloy_testing.namings import files_of, shape_of

# Name → the native path of its weight, and the rows of a part.
ATTENTION = "transformer_blocks.0.attn1.to_q"
WILD = {
    "sd15": {
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q": f"input_blocks.1.1.{ATTENTION}",
        "lora_unet_down_blocks_0_resnets_0_conv1": "input_blocks.1.0.in_layers.2",
        "lora_unet_mid_block_resnets_0_conv2": "middle_block.0.out_layers.3",
        "lora_unet_time_embedding_linear_1": "time_embed.0",
        "lycoris_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q": f"input_blocks.1.1.{ATTENTION}",
        "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_q": f"input_blocks.1.1.{ATTENTION}",
        "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": f"input_blocks.1.1.{ATTENTION}",
        "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q": f"input_blocks.1.1.{ATTENTION}",
        "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q": f"input_blocks.1.1.{ATTENTION}",
    },
    "sdxl": {
        "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q": f"input_blocks.4.1.{ATTENTION}",
        "lora_unet_input_blocks_4_0_in_layers_2": "input_blocks.4.0.in_layers.2",
        "lora_unet_input_blocks_4_0_emb_layers_1": "input_blocks.4.0.emb_layers.1",
        "lora_unet_input_blocks_4_0_out_layers_3": "input_blocks.4.0.out_layers.3",
        "lora_unet_input_blocks_4_0_skip_connection": "input_blocks.4.0.skip_connection",
        "lora_unet_label_emb_0_0": "label_emb.0.0",
        "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q": f"input_blocks.4.1.{ATTENTION}",
        "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_q": f"input_blocks.4.1.{ATTENTION}",
    },
    "sd35_medium": {
        "lora_unet_joint_blocks_0_x_block_attn_qkv": "joint_blocks.0.x_block.attn.qkv",
        "transformer.transformer_blocks.0.attn.to_q": ("joint_blocks.0.x_block.attn.qkv", 0, 1536),
        "transformer.transformer_blocks.0.attn.add_q_proj": (
            "joint_blocks.0.context_block.attn.qkv",
            0,
            1536,
        ),
        "transformer.transformer_blocks.0.attn2.to_q": ("joint_blocks.0.x_block.attn2.qkv", 0, 1536),
        "base_model.model.transformer_blocks.0.attn.to_k": ("joint_blocks.0.x_block.attn.qkv", 1536, 1536),
        "lora_transformer_transformer_blocks_0_attn_to_q": ("joint_blocks.0.x_block.attn.qkv", 0, 1536),
        "lycoris_transformer_blocks_0_attn_to_q": ("joint_blocks.0.x_block.attn.qkv", 0, 1536),
        "transformer_blocks.0.attn.to_q": ("joint_blocks.0.x_block.attn.qkv", 0, 1536),
    },
    "flux": {
        "lora_unet_double_blocks_0_img_attn_qkv": "double_blocks.0.img_attn.qkv",
        "lora_unet_single_blocks_0_linear1": "single_blocks.0.linear1",
        "transformer.transformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", 0, 3072),
        "transformer.single_transformer_blocks.0.attn.to_q": ("single_blocks.0.linear1", 0, 3072),
        "transformer.single_transformer_blocks.0.proj_mlp": ("single_blocks.0.linear1", 9216, 12288),
        "transformer.single_transformer_blocks.0.proj_out": "single_blocks.0.linear2",
        "transformer.single_transformer_blocks.0.norm.linear": "single_blocks.0.modulation.lin",
        "lycoris_transformer_blocks_0_attn_to_q": ("double_blocks.0.img_attn.qkv", 0, 3072),
        "lora_transformer_transformer_blocks_0_attn_to_q": ("double_blocks.0.img_attn.qkv", 0, 3072),
        "diffusion_model.double_blocks.0.img_attn.qkv": "double_blocks.0.img_attn.qkv",
        "transformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", 0, 3072),
        "double_blocks.0.img_attn.qkv": "double_blocks.0.img_attn.qkv",
        "base_model.model.double_blocks.0.img_attn.qkv": "double_blocks.0.img_attn.qkv",
        "base_model.model.transformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", 0, 3072),
        "diffusion_model.transformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", 0, 3072),
        "transformer.double_blocks.0.img_attn.qkv": "double_blocks.0.img_attn.qkv",
        "double_blocks.0.processor.qkv_lora2": "double_blocks.0.txt_attn.qkv",
        "single_blocks.0.processor.qkv_lora": ("single_blocks.0.linear1", 0, 9216),
    },
    "chroma": {
        "diffusion_model.distilled_guidance_layer.in_proj": "distilled_guidance_layer.in_proj",
        "transformer.distilled_guidance_layer.layers.0.linear_1": "distilled_guidance_layer.layers.0.in_layer",
    },
    "klein_4b": {
        "diffusion_model.double_blocks.0.img_attn.qkv": "double_blocks.0.img_attn.qkv",
        "lora_unet_double_blocks_0_img_attn_qkv": "double_blocks.0.img_attn.qkv",
        "transformer.transformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", 0, 3072),
        "transformer.transformer_blocks.0.ff.linear_in": "double_blocks.0.img_mlp.0",
        "transformer.transformer_blocks.0.ff_context.linear_out": "double_blocks.0.txt_mlp.2",
        "transformer.single_transformer_blocks.0.attn.to_qkv_mlp_proj": "single_blocks.0.linear1",
        "transformer.single_transformer_blocks.0.attn.to_out": "single_blocks.0.linear2",
        "lycoris_single_transformer_blocks_0_attn_to_qkv_mlp_proj": "single_blocks.0.linear1",
        "transformer.double_stream_modulation_img.linear": "double_stream_modulation_img.lin",
        "transformer.time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer",
        "sformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", 0, 3072),
    },
    "z_image": {
        "lora_unet_layers_0_attention_qkv": "layers.0.attention.qkv",
        "diffusion_model.layers.0.attention.out": "layers.0.attention.out",
        "diffusion_model.layers.0.attention.to_q": ("layers.0.attention.qkv", 0, 3840),
        "transformer.layers.0.attention.to_q": ("layers.0.attention.qkv", 0, 3840),
        "lycoris_layers_0_attention_to_q": ("layers.0.attention.qkv", 0, 3840),
        "transformer.layers.0.attention.to_out.0": "layers.0.attention.out",
        "layers.0.attention.to_q": ("layers.0.attention.qkv", 0, 3840),
        "lora_unet_layers_0_attention_to_q": ("layers.0.attention.qkv", 0, 3840),
        "base_model.model.layers.0.attention.to_q": ("layers.0.attention.qkv", 0, 3840),
        "layers.0.attention.qkv": "layers.0.attention.qkv",
    },
    "lumina2": {
        "transformer.layers.0.attn.to_v": ("layers.0.attention.qkv", 3072, 768),
        "transformer.layers.0.feed_forward.linear_1": "layers.0.feed_forward.w1",
        "diffusion_model.layers.0.attention.to_k": ("layers.0.attention.qkv", 2304, 768),
    },
    "wan_14b": {
        "lora_unet_blocks_0_self_attn_q": "blocks.0.self_attn.q",
        "diffusion_model.blocks.0.cross_attn.k_img": "blocks.0.cross_attn.k_img",
        "lora_unet__blocks_0_self_attn_q": "blocks.0.self_attn.q",
        "transformer.blocks.0.attn1.to_q": "blocks.0.self_attn.q",
        "transformer.blocks.0.attn2.to_out.0": "blocks.0.cross_attn.o",
        "transformer.blocks.0.ffn.net.0.proj": "blocks.0.ffn.0",
        "blocks.0.self_attn.q": "blocks.0.self_attn.q",
        "base_model.model.blocks.0.self_attn.q": "blocks.0.self_attn.q",
        "pipe.dit.blocks.0.self_attn.q": "blocks.0.self_attn.q",
        "transformer.blocks.0.self_attn.q": "blocks.0.self_attn.q",
        "lycoris_blocks_0_self_attn_q": "blocks.0.self_attn.q",
    },
    "qwen_image": {
        "lora_unet_transformer_blocks_0_attn_to_q": "transformer_blocks.0.attn.to_q",
        "diffusion_model.transformer_blocks.0.attn.to_q": "transformer_blocks.0.attn.to_q",
        "transformer.transformer_blocks.0.attn.to_q": "transformer_blocks.0.attn.to_q",
        "transformer_blocks.0.attn.to_q": "transformer_blocks.0.attn.to_q",
        "lycoris_transformer_blocks_0_attn_to_q": "transformer_blocks.0.attn.to_q",
        "base_model.model.transformer_blocks.0.attn.to_q": "transformer_blocks.0.attn.to_q",
        "lora_transformer_transformer_blocks_0_attn_to_q": "transformer_blocks.0.attn.to_q",
    },
    "hunyuan_video": {
        "lora_unet_double_blocks_0_img_attn_qkv": "double_blocks.0.img_attn.qkv",
        "transformer.double_blocks.0.img_attn_qkv": "double_blocks.0.img_attn.qkv",
        "diffusion_model.double_blocks.0.img_mlp.fc1": "double_blocks.0.img_mlp.0",
        "transformer.double_blocks.0.img_mod.linear": "double_blocks.0.img_mod.lin",
        "transformer.transformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", 0, 3072),
    },
    "hunyuan_image": {
        "lora_unet_double_blocks_0_img_mlp_fc1": "double_blocks.0.img_mlp.0",
        "lora_unet_double_blocks_0_img_mod_linear": "double_blocks.0.img_mod.lin",
    },
    "hunyuan_video_15": {"lora_unet_double_blocks_0_img_attn_q": ("double_blocks.0.img_attn.qkv", 0, 2048)},
    "ltx": {
        "diffusion_model.transformer_blocks.0.attn1.to_q": "transformer_blocks.0.attn1.to_q",
        "lora_unet_transformer_blocks_0_attn1_to_q": "transformer_blocks.0.attn1.to_q",
        "transformer.transformer_blocks.0.attn1.to_q": "transformer_blocks.0.attn1.to_q",
        "base_model.model.transformer_blocks.0.attn1.to_q": "transformer_blocks.0.attn1.to_q",
        "transformer.proj_in": "patchify_proj",
    },
    "ltx2": {"transformer.time_embed.linear": "adaln_single.linear"},
    "auraflow": {
        "transformer.joint_transformer_blocks.0.attn.to_q": "double_layers.0.attn.w2q",
        "diffusion_model.double_layers.0.attn.w2q": "double_layers.0.attn.w2q",
    },
    "pixart": {
        "transformer.transformer_blocks.0.attn1.to_q": ("blocks.0.attn.qkv", 0, 1152),
        "base_model.model.transformer_blocks.0.attn1.to_q": ("blocks.0.attn.qkv", 0, 1152),
        "unet.base_model.model.transformer_blocks.0.attn1.to_q": ("blocks.0.attn.qkv", 0, 1152),
        "lora_transformer_transformer_blocks_0_attn1_to_q": ("blocks.0.attn.qkv", 0, 1152),
    },
    "hunyuan_dit": {"base_model.model.blocks.0.attn1.Wqkv": "blocks.0.attn1.Wqkv"},
    "mochi": {
        "blocks.0.attn.qkv_x": "blocks.0.attn.qkv_x",
        "transformer.transformer_blocks.0.attn1.to_q": ("blocks.0.attn.qkv_x", 0, 3072),
    },
    "cascade": {
        "lora_prior_unet_down_blocks_0_0_channelwise_0": "down_blocks.0.0.channelwise.0",
        "lora_unet_down_blocks_0_0_channelwise_0": "down_blocks.0.0.channelwise.0",
    },
    "hidream": dict.fromkeys(
        (
            "transformer.double_stream_blocks.0.block.attn1.to_q",
            "lycoris_double_stream_blocks_0_block_attn1_to_q",
            "diffusion_model.double_stream_blocks.0.block.attn1.to_q",
        ),
        "double_stream_blocks.0.block.attn1.to_q",
    ),
    "ace_step": dict.fromkeys(
        ("transformer_blocks.0.attn.to_q", "diffusion_model.transformer_blocks.0.attn.to_q"),
        "transformer_blocks.0.attn.to_q",
    ),
    "ace_step_15": dict.fromkeys(
        (
            "base_model.model.layers.0.self_attn.q_proj",
            "lycoris_layers_0_self_attn_q_proj",
            "diffusion_model.decoder.layers.0.self_attn.q_proj",
        ),
        "decoder.layers.0.self_attn.q_proj",
    ),
    "omnigen2": dict.fromkeys(("layers.0.attn.to_q", "transformer.layers.0.attn.to_q"), "layers.0.attn.to_q"),
    "kandinsky5_lite": dict.fromkeys(
        (
            "visual_transformer_blocks.0.self_attention.to_query",
            "transformer.visual_transformer_blocks.0.self_attention.to_query",
        ),
        "visual_transformer_blocks.0.self_attention.to_query",
    ),
    "anima": dict.fromkeys(
        ("lora_unet_blocks_0_self_attn_q_proj", "diffusion_model.blocks.0.self_attn.q_proj"),
        "blocks.0.self_attn.q_proj",
    ),
}
CLIP = "transformer.text_model.encoder.layers.0.self_attn.q_proj"
T5 = "transformer.encoder.block.0.layer.0.SelfAttention.q"
QWEN = "transformer.model.layers.0.self_attn.q_proj"
TEXT = {
    "sd15": {
        "lora_te_text_model_encoder_layers_0_self_attn_q_proj": f"clip_l.{CLIP}",
        "text_encoder.text_model.encoder.layers.0.self_attn.q_proj": f"clip_l.{CLIP}",
    },
    "sd2": {"lora_te_text_model_encoder_layers_0_self_attn_q_proj": f"clip_h.{CLIP}"},
    "sdxl": {
        "lora_te1_text_model_encoder_layers_0_self_attn_q_proj": f"clip_l.{CLIP}",
        "lora_te2_text_model_encoder_layers_0_self_attn_q_proj": f"clip_g.{CLIP}",
        "lora_te_text_model_encoder_layers_0_self_attn_q_proj": f"clip_l.{CLIP}",
        "text_encoder_2.text_model.encoder.layers.0.self_attn.q_proj": f"clip_g.{CLIP}",
        f"text_encoders.clip_g.{CLIP}": f"clip_g.{CLIP}",
    },
    "flux": {
        "lora_te2_encoder_block_0_layer_0_SelfAttention_q": f"t5xxl.{T5}",
        "lora_te3_encoder_block_0_layer_0_SelfAttention_q": f"t5xxl.{T5}",
        f"text_encoders.t5xxl.{T5}": f"t5xxl.{T5}",
        f"text_encoders.{T5}": f"t5xxl.{T5}",
    },
    "sd35_medium": {"lora_te3_encoder_block_0_layer_0_SelfAttention_q": f"t5xxl.{T5}"},
    "hidream": {
        "lora_te4_model_layers_0_self_attn_q_proj": f"llama.{QWEN}",
        f"text_encoders.llama.{QWEN}": f"llama.{QWEN}",
    },
    "lumina2": {"lora_te_layers_0_self_attn_q_proj": f"gemma2_2b.{QWEN}"},
    "anima": {"lora_te_layers_0_self_attn_q_proj": f"qwen3_06b.{QWEN}"},
    "qwen_image": {
        "lora_te_layers_0_self_attn_q_proj": f"qwen25_7b.{QWEN}",
        f"text_encoders.qwen25_7b.{QWEN}": f"qwen25_7b.{QWEN}",
        f"text_encoders.{QWEN}": f"qwen25_7b.{QWEN}",
    },
    "z_image": {f"text_encoders.qwen3_4b.{QWEN}": f"qwen3_4b.{QWEN}"},
    "cascade": {
        "lora_prior_te_text_model_encoder_layers_0_self_attn_q_proj": f"clip_g.{CLIP}",
    },
}
CASES = [
    *((key, name, "diffusion_model.", found) for key, names in WILD.items() for name, found in names.items()),
    *((key, name, "text_encoders.", found) for key, names in TEXT.items() for name, found in names.items()),
]


@pytest.mark.parametrize(("key", "name", "prefix", "found"), CASES, ids=lambda value: str(value)[:60])
def test_a_name_in_the_wild_is_read_detected_and_in_the_document(key, name, prefix, found):
    path, *rows = (found,) if isinstance(found, str) else found
    target = Target(prefix + path, Part(0, *rows) if rows else None)
    one = family(key)
    files = [file for file in files_of(one) if name in file.routes]
    assert files, "no row of the document has it"
    outputs, inputs, *kernel = shape_of(key, target)
    for file in files:
        tensors = {
            name + file.up: torch.zeros(outputs, 2, *(1 for _ in kernel)),
            name + file.down: torch.zeros(2, inputs, *kernel),
        }
        opened = lora_in_memory("ink", tensors, {})
        (module,) = opened.modules.values()
        assert key in {candidate.key for candidate in opened.families}
        assert resolve(module.name, key_map(one)) == Route(target)


# Heads and frames, which a trainer adds now and then, have names of their own.
ALONE = [
    ("sd35_medium", "lora_te2_text_projection", "text_encoders.clip_g.transformer.text_projection"),
    ("sd35_medium", "lora_te1_text_projection", "text_encoders.clip_l.transformer.text_projection"),
    (
        "sd15",
        "oft_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
        f"diffusion_model.input_blocks.1.1.{ATTENTION}",
    ),
    (
        "qwen_image",
        "transformer_blocks.0.attn.to_q.default",
        "diffusion_model.transformer_blocks.0.attn.to_q",
    ),
]


@pytest.mark.parametrize(("key", "name", "weight"), ALONE)
def test_a_name_that_no_whole_file_is_made_of_is_read_too(key, name, weight):
    assert resolve(name, key_map(family(key))) == Route(Target(weight))
