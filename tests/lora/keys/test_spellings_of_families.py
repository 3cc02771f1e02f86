"""Names written by hand, of every trainer and family: `found` is where each leads, `None` for a whole weight."""

import pytest

from lora_alloy.lora.keys import candidates, family, key_map, loose_name, resolve
from lora_alloy.lora.target import Part, Route, Target

WRITTEN_BY_HAND = {
    "wan_14b": {
        "lora_unet_blocks_0_self_attn_q": ("blocks.0.self_attn.q", None),
        "lora_unet__blocks_0_cross_attn_k": ("blocks.0.cross_attn.k", None),  # VideoX-Fun
        "diffusion_model.blocks.39.cross_attn.v_img": ("blocks.39.cross_attn.v_img", None),
        "transformer.blocks.0.attn1.to_q": ("blocks.0.self_attn.q", None),
        "transformer.blocks.0.attn1.to_out.0": ("blocks.0.self_attn.o", None),
        "transformer.blocks.12.attn2.to_out.0": ("blocks.12.cross_attn.o", None),
        "transformer.blocks.12.attn2.add_k_proj": ("blocks.12.cross_attn.k_img", None),
        "transformer.blocks.12.ffn.net.0.proj": ("blocks.12.ffn.0", None),
        "transformer.blocks.12.ffn.net.2": ("blocks.12.ffn.2", None),
        "transformer.condition_embedder.time_proj": ("time_projection.1", None),
        "transformer.proj_out": ("head.head", None),
        "blocks.0.self_attn.q": ("blocks.0.self_attn.q", None),  # DiffSynth
        "base_model.model.blocks.0.self_attn.q": ("blocks.0.self_attn.q", None),
        "pipe.dit.blocks.0.ffn.0": ("blocks.0.ffn.0", None),
        "transformer.blocks.0.self_attn.q": ("blocks.0.self_attn.q", None),
        "lycoris_blocks_0_attn1_to_q": ("blocks.0.self_attn.q", None),
        "lycoris_blocks_0_self_attn_q": ("blocks.0.self_attn.q", None),
        "diffusion_model.vace_blocks.7.after_proj": ("vace_blocks.7.after_proj", None),
        "transformer.vace_blocks.0.proj_in": ("vace_blocks.0.before_proj", None),
    },
    "qwen_image": {
        "lora_unet_transformer_blocks_0_attn_to_q": ("transformer_blocks.0.attn.to_q", None),
        "transformer.transformer_blocks.59.attn.add_q_proj": ("transformer_blocks.59.attn.add_q_proj", None),
        "transformer_blocks.0.attn.to_out.0.default": ("transformer_blocks.0.attn.to_out.0", None),
        "base_model.model.transformer_blocks.0.img_mod.1": ("transformer_blocks.0.img_mod.1", None),
        "lora_transformer_transformer_blocks_0_txt_mlp_net_2": ("transformer_blocks.0.txt_mlp.net.2", None),
        "lycoris_transformer_blocks_7_img_mlp_net_0_proj": ("transformer_blocks.7.img_mlp.net.0.proj", None),
        "sformer_blocks.3.attn.to_k": ("transformer_blocks.3.attn.to_k", None),
    },
    "z_image": {
        "lora_unet_layers_0_attention_qkv": ("layers.0.attention.qkv", None),
        "lora_unet_layers_0_attention_to_q": ("layers.0.attention.qkv", (0, 3840)),  # musubi, raw
        "lora_unet_layers_0_attention_to_out_0": ("layers.0.attention.out", None),
        "diffusion_model.layers.29.attention.to_k": ("layers.29.attention.qkv", (3840, 3840)),
        "transformer.layers.0.attention.to_v": ("layers.0.attention.qkv", (7680, 3840)),
        "layers.0.attention.to_out.0": ("layers.0.attention.out", None),
        "layers.0.attention.qkv": ("layers.0.attention.qkv", None),
        "base_model.model.layers.0.feed_forward.w1": ("layers.0.feed_forward.w1", None),
        "lycoris_layers_0_attention_to_q": ("layers.0.attention.qkv", (0, 3840)),
        "transformer.all_x_embedder.2-1": ("x_embedder", None),
        "diffusion_model.context_refiner.1.attention.to_q": ("context_refiner.1.attention.qkv", (0, 3840)),
    },
    "lumina2": {
        "lora_unet_layers_0_attention_qkv": ("layers.0.attention.qkv", None),
        "transformer.layers.0.attn.to_q": ("layers.0.attention.qkv", (0, 2304)),
        "transformer.layers.0.attn.to_k": ("layers.0.attention.qkv", (2304, 768)),
        "transformer.layers.0.attn.to_v": ("layers.0.attention.qkv", (3072, 768)),
        "diffusion_model.layers.0.attention.to_v": ("layers.0.attention.qkv", (3072, 768)),
        "transformer.layers.0.feed_forward.linear_1": ("layers.0.feed_forward.w1", None),
        "transformer.layers.0.norm1.linear": ("layers.0.adaLN_modulation.1", None),
        "transformer.context_refiner.0.norm1": ("context_refiner.0.attention_norm1", None),
        "transformer.layers.0.norm1.norm": ("layers.0.attention_norm1", None),
    },
    "sd35_medium": {
        "lora_unet_joint_blocks_0_x_block_attn_qkv": ("joint_blocks.0.x_block.attn.qkv", None),
        "transformer.transformer_blocks.0.attn.to_k": ("joint_blocks.0.x_block.attn.qkv", (1536, 1536)),
        "base_model.model.transformer_blocks.0.attn.add_v_proj": (
            "joint_blocks.0.context_block.attn.qkv",
            (3072, 1536),
        ),
        "transformer.transformer_blocks.12.attn2.to_q": ("joint_blocks.12.x_block.attn2.qkv", (0, 1536)),
        "lora_transformer_transformer_blocks_0_ff_net_0_proj": ("joint_blocks.0.x_block.mlp.fc1", None),
        "transformer_blocks.0.attn.to_q": ("joint_blocks.0.x_block.attn.qkv", (0, 1536)),
        "lycoris_transformer_blocks_3_ff_context_net_2": ("joint_blocks.3.context_block.mlp.fc2", None),
    },
    "chroma": {
        "diffusion_model.double_blocks.0.img_attn.qkv": ("double_blocks.0.img_attn.qkv", None),
        "transformer.transformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", (0, 3072)),
        "transformer.single_transformer_blocks.37.proj_mlp": ("single_blocks.37.linear1", (9216, 12288)),
        "diffusion_model.distilled_guidance_layer.layers.0.in_layer": (
            "distilled_guidance_layer.layers.0.in_layer",
            None,
        ),
        "transformer.distilled_guidance_layer.layers.0.linear_1": (
            "distilled_guidance_layer.layers.0.in_layer",
            None,
        ),
    },
    "flux2": {
        "diffusion_model.double_blocks.7.img_mlp.0": ("double_blocks.7.img_mlp.0", None),
        "lora_unet_double_blocks_0_img_attn_qkv": ("double_blocks.0.img_attn.qkv", None),
        "transformer.transformer_blocks.0.attn.add_k_proj": ("double_blocks.0.txt_attn.qkv", (6144, 6144)),
        "transformer.transformer_blocks.0.ff.linear_in": ("double_blocks.0.img_mlp.0", None),
        "transformer.single_transformer_blocks.47.attn.to_qkv_mlp_proj": ("single_blocks.47.linear1", None),
        "transformer.single_transformer_blocks.47.attn.to_out": ("single_blocks.47.linear2", None),
        "transformer.double_stream_modulation_img.linear": ("double_stream_modulation_img.lin", None),
        "transformer.time_guidance_embed.timestep_embedder.linear_1": ("time_in.in_layer", None),
        "sformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", (0, 6144)),
        "le_transformer_blocks.0.attn.to_out": ("single_blocks.0.linear2", None),
        "base_model.model.double_blocks.0.img_attn.proj": ("double_blocks.0.img_attn.proj", None),
    },
    "hunyuan_video": {
        "lora_unet_double_blocks_0_img_attn_qkv": ("double_blocks.0.img_attn.qkv", None),
        "transformer.double_blocks.0.img_attn_qkv": ("double_blocks.0.img_attn.qkv", None),
        "diffusion_model.double_blocks.19.img_mlp.fc1": ("double_blocks.19.img_mlp.0", None),
        "lora_unet_double_blocks_0_txt_mlp_fc2": ("double_blocks.0.txt_mlp.2", None),
        "lora_unet_double_blocks_0_img_mod_linear": ("double_blocks.0.img_mod.lin", None),
        "transformer.single_blocks.39.modulation.linear": ("single_blocks.39.modulation.lin", None),
        "transformer.transformer_blocks.0.attn.to_v": ("double_blocks.0.img_attn.qkv", (6144, 3072)),
        "transformer.single_transformer_blocks.0.proj_mlp": ("single_blocks.0.linear1", (9216, 12288)),
        "transformer.context_embedder.token_refiner.refiner_blocks.1.attn.to_q": (
            "txt_in.individual_token_refiner.blocks.1.self_attn.qkv",
            (0, 3072),
        ),
    },
    "hunyuan_video_15": {
        "lora_unet_double_blocks_53_img_attn_q": ("double_blocks.53.img_attn.qkv", (0, 2048)),
        "lora_unet_double_blocks_0_txt_attn_v": ("double_blocks.0.txt_attn.qkv", (4096, 2048)),
        "transformer.transformer_blocks.0.attn.add_q_proj": ("double_blocks.0.txt_attn.qkv", (0, 2048)),
    },
    "ltx": {
        "diffusion_model.transformer_blocks.0.attn1.to_q": ("transformer_blocks.0.attn1.to_q", None),
        "transformer.transformer_blocks.0.ff.net.2": ("transformer_blocks.0.ff.net.2", None),
        "transformer.proj_in": ("patchify_proj", None),
        "transformer.time_embed.linear": ("adaln_single.linear", None),
        "transformer.transformer_blocks.0.attn1.norm_q": ("transformer_blocks.0.attn1.q_norm", None),
        "base_model.model.transformer_blocks.27.attn2.to_k": ("transformer_blocks.27.attn2.to_k", None),
    },
    "ltx2": {
        "transformer.audio_proj_in": ("audio_patchify_proj", None),
        "transformer.av_cross_attn_video_a2v_gate.linear": ("av_ca_a2v_gate_adaln_single.linear", None),
        "transformer.transformer_blocks.0.audio_attn1.to_q": ("transformer_blocks.0.audio_attn1.to_q", None),
    },
    "auraflow": {
        "transformer.joint_transformer_blocks.0.attn.to_q": ("double_layers.0.attn.w2q", None),
        "transformer.joint_transformer_blocks.0.attn.add_q_proj": ("double_layers.0.attn.w1q", None),
        "transformer.single_transformer_blocks.31.attn.to_out.0": ("single_layers.31.attn.w1o", None),
        "lora_unet_single_layers_0_mlp_c_proj": ("single_layers.0.mlp.c_proj", None),
    },
    "pixart": {
        "unet.base_model.model.transformer_blocks.0.attn1.to_q": ("blocks.0.attn.qkv", (0, 1152)),
        "transformer.transformer_blocks.0.attn2.to_v": ("blocks.0.cross_attn.kv_linear", (1152, 1152)),
        "lora_transformer_transformer_blocks_0_attn2_to_q": ("blocks.0.cross_attn.q_linear", None),
    },
    "hunyuan_dit": {
        "base_model.model.blocks.0.attn1.Wqkv": ("blocks.0.attn1.Wqkv", None),
        "transformer.blocks.0.attn1.to_k": ("blocks.0.attn1.Wqkv", (1408, 1408)),
        "lora_unet_blocks_0_norm2": ("blocks.0.norm2", None),
    },
    "mochi": {
        "blocks.0.attn.qkv_x": ("blocks.0.attn.qkv_x", None),
        "transformer.transformer_blocks.0.attn1.to_q": ("blocks.0.attn.qkv_x", (0, 3072)),
        "transformer.transformer_blocks.0.attn1.add_k_proj": ("blocks.0.attn.qkv_y", (3072, 3072)),
        "transformer.transformer_blocks.47.norm1_context.linear_1": ("blocks.47.mod_y", None),
    },
    "cascade": {
        "lora_prior_unet_down_blocks_0_0_channelwise_0": ("down_blocks.0.0.channelwise.0", None),
        "lora_unet_up_blocks_1_2_attention_attn_to_q": ("up_blocks.1.2.attention.attn.to_q", None),
        "unet.down_blocks.1.2.attention.to_out.0": ("down_blocks.1.2.attention.attn.out_proj", None),
    },
    "hidream": {
        "transformer.double_stream_blocks.0.block.ff_i.experts.3.w1": (
            "double_stream_blocks.0.block.ff_i.experts.3.w1",
            None,
        ),
        "lycoris_single_stream_blocks_31_block_attn1_to_q": (
            "single_stream_blocks.31.block.attn1.to_q",
            None,
        ),
    },
    "ace_step": {"transformer_blocks.0.attn.to_q": ("transformer_blocks.0.attn.to_q", None)},
    "ace_step_15": {
        "base_model.model.layers.0.self_attn.q_proj": ("decoder.layers.0.self_attn.q_proj", None),
        "lycoris_layers_0_mlp_up_proj": ("decoder.layers.0.mlp.up_proj", None),
        "diffusion_model.decoder.layers.23.cross_attn.o_proj": ("decoder.layers.23.cross_attn.o_proj", None),
        "transformer.layers.0.self_attn.to_out.0": ("decoder.layers.0.self_attn.o_proj", None),
    },
    "omnigen2": {
        "transformer.layers.0.attn.to_k": ("layers.0.attn.to_k", None),
        "layers.31.feed_forward.linear_1": ("layers.31.feed_forward.linear_1", None),
    },
    "kandinsky5_lite": {
        "visual_transformer_blocks.0.self_attention.to_query": (
            "visual_transformer_blocks.0.self_attention.to_query",
            None,
        ),
    },
    "anima": {
        "lora_unet_blocks_0_self_attn_q_proj": ("blocks.0.self_attn.q_proj", None),
        "lora_unet_llm_adapter_blocks_5_mlp_2": ("llm_adapter.blocks.5.mlp.2", None),
    },
}


@pytest.mark.parametrize(
    ("key", "name", "found"),
    [(key, name, found) for key, names in WRITTEN_BY_HAND.items() for name, found in names.items()],
)
def test_a_name_leads_where_it_should(key, name, found):
    path, rows = found
    part = None if rows is None else Part(0, *rows)
    assert resolve(name, key_map(family(key))) == Route(Target(f"diffusion_model.{path}", part))


HALVES = [
    ("sd3", "transformer.norm_out.linear", "final_layer.adaLN_modulation.1"),
    (
        "sd3",
        "transformer.transformer_blocks.23.norm1_context.linear",
        "joint_blocks.23.context_block.adaLN_modulation.1",
    ),
    ("flux2", "transformer.norm_out.linear", "final_layer.adaLN_modulation.1"),
    ("hunyuan_video", "transformer.norm_out.linear", "final_layer.adaLN_modulation.1"),
    ("auraflow", "transformer.norm_out.linear", "modF.1"),
    ("mochi", "transformer.norm_out.linear", "final_layer.mod"),
    ("mochi", "transformer.transformer_blocks.5.ff.net.0.proj", "blocks.5.mlp_x.w1"),
]


@pytest.mark.parametrize(("key", "name", "path"), HALVES)
def test_diffusers_has_some_halves_the_other_way_round(key, name, path):
    known = key_map(family(key))
    target = Target(f"diffusion_model.{path}")
    assert resolve(name, known) == Route(target, swap_halves=True)
    assert resolve(f"diffusion_model.{path}", known) == Route(target)


def test_only_the_last_text_modulation_of_sd3_is_the_other_way_round():
    found = resolve("transformer.transformer_blocks.22.norm1_context.linear", key_map(family("sd3")))
    assert found == Route(Target("diffusion_model.joint_blocks.22.context_block.adaLN_modulation.1"))


TEXT_WRITTEN_BY_HAND = [
    ("lumina2", "lora_te_layers_0_self_attn_q_proj", "gemma2_2b.transformer.model.layers.0.self_attn.q_proj"),
    ("lumina2", "lora_te_model_layers_0_mlp_up_proj", "gemma2_2b.transformer.model.layers.0.mlp.up_proj"),
    ("anima", "lora_te_layers_27_self_attn_k_proj", "qwen3_06b.transformer.model.layers.27.self_attn.k_proj"),
    ("qwen_image", "lora_te_model_layers_0_mlp_up_proj", "qwen25_7b.transformer.model.layers.0.mlp.up_proj"),
    (
        "qwen_image",
        "text_encoder.model.layers.0.mlp.up_proj",
        "qwen25_7b.transformer.model.layers.0.mlp.up_proj",
    ),
    (
        "qwen_image",
        "text_encoders.qwen25_7b.transformer.model.layers.0.mlp.up_proj",
        "qwen25_7b.transformer.model.layers.0.mlp.up_proj",
    ),
    (
        "z_image",
        "text_encoders.transformer.model.layers.35.self_attn.o_proj",
        "qwen3_4b.transformer.model.layers.35.self_attn.o_proj",
    ),
    ("hidream", "lora_te4_model_layers_31_mlp_down_proj", "llama.transformer.model.layers.31.mlp.down_proj"),
    ("hidream", "lora_te4_layers_31_mlp_down_proj", "llama.transformer.model.layers.31.mlp.down_proj"),
    (
        "hidream",
        "lora_te1_text_model_encoder_layers_0_mlp_fc1",
        "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1",
    ),
    (
        "sd3",
        "lora_te3_encoder_block_0_layer_0_SelfAttention_q",
        "t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q",
    ),
    ("sd3", "lora_te2_text_projection", "clip_g.transformer.text_projection"),
    ("cascade", "lora_prior_te_text_projection", "clip_g.transformer.text_projection"),
    (
        "cascade",
        "lora_prior_te_text_model_encoder_layers_31_mlp_fc2",
        "clip_g.transformer.text_model.encoder.layers.31.mlp.fc2",
    ),
    (
        "wan_14b",
        "text_encoder.encoder.block.0.layer.0.SelfAttention.q",
        "umt5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q",
    ),
    (
        "ltx",
        "lora_te1_encoder_block_0_layer_1_DenseReluDense_wo",
        "t5xxl.transformer.encoder.block.0.layer.1.DenseReluDense.wo",
    ),
    (
        "hunyuan_dit",
        "lora_te1_encoder_layer_0_attention_self_query",
        "hydit_clip.transformer.bert.encoder.layer.0.attention.self.query",
    ),
]


@pytest.mark.parametrize(("key", "name", "found"), TEXT_WRITTEN_BY_HAND)
def test_a_text_encoders_name_leads_where_it_should(key, name, found):
    assert resolve(name, key_map(family(key))) == Route(Target(f"text_encoders.{found}"))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("wan_14b", "diffusion_model.blocks.40.self_attn.q"),
        ("wan_1_3b", "diffusion_model.blocks.30.self_attn.q"),
        ("wan_14b", "diffusion_model.blocks.007.self_attn.q"),
        ("wan_14b", f"diffusion_model.blocks.{'9' * 5000}.self_attn.q"),
        ("wan_14b", "diffusion_model.blocks.#.self_attn.q"),
        ("z_image", "lora_unet_layers_30_attention_qkv"),
        ("sd3", "transformer.transformer_blocks.0.attn2.to_q"),
        ("sd35_medium", "transformer.transformer_blocks.13.attn2.to_q"),
        ("hunyuan_video_15", "diffusion_model.single_blocks.0.linear1"),
        ("hunyuan_dit", "lora_unet_blocks_20_skip_linear"),
        ("chroma", "diffusion_model.double_blocks.0.img_mod.lin"),
    ],
)
def test_a_block_that_the_family_lacks_leads_nowhere(key, name):
    assert resolve(name, key_map(family(key))) is None


INVENTED = ["foo.blocks.3.bar", "diffusion_model.foo.blocks.3.bar", "lora_unet_foo_blocks_3_bar"]


@pytest.mark.parametrize("name", INVENTED)
def test_an_invented_architecture_is_of_no_family_and_has_one_loose_name(name):
    assert candidates({name: ((8, 4), (4, 8))}) == ()
    assert loose_name(name) == "diffusion_model.foo_blocks_3_bar"
