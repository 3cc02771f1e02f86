import itertools
import random

import pytest

from lora_alloy.lora.keys import FAMILIES, family, key_map, loose_name, resolve
from lora_alloy.lora.keys.table import names_of
from lora_alloy.lora.target import Part, Route, Target

UNET_WRITTEN_BY_HAND = {
    "sd15": {
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q": (
            "input_blocks.1.1.transformer_blocks.0.attn1.to_q"
        ),
        "unet.down_blocks.1.attentions.1.proj_in": "input_blocks.5.1.proj_in",
        "unet.down_blocks.2.attentions.0.transformer_blocks.0.attn2.to_k": (
            "input_blocks.7.1.transformer_blocks.0.attn2.to_k"
        ),
        "unet.down_blocks.0.attentions.1.transformer_blocks.0.attn1.processor.to_q": (
            "input_blocks.2.1.transformer_blocks.0.attn1.to_q"
        ),
        "unet.up_blocks.1.attentions.0.transformer_blocks.0.attn2.processor.to_out": (
            "output_blocks.3.1.transformer_blocks.0.attn2.to_out.0"
        ),
        "lora_unet_mid_block_attentions_0_transformer_blocks_0_ff_net_0_proj": (
            "middle_block.1.transformer_blocks.0.ff.net.0.proj"
        ),
        "lora_unet_mid_block_resnets_1_time_emb_proj": "middle_block.2.emb_layers.1",
        "lora_unet_down_blocks_2_resnets_0_conv_shortcut": "input_blocks.7.0.skip_connection",
        "lora_unet_down_blocks_3_resnets_1_conv2": "input_blocks.11.0.out_layers.3",
        "lora_unet_down_blocks_0_downsamplers_0_conv": "input_blocks.3.0.op",
        "lora_unet_up_blocks_0_upsamplers_0_conv": "output_blocks.2.1.conv",
        "lora_unet_up_blocks_1_upsamplers_0_conv": "output_blocks.5.2.conv",
        "lora_unet_up_blocks_3_attentions_2_proj_out": "output_blocks.11.1.proj_out",
        "unet.up_blocks.3.resnets.2.conv1": "output_blocks.11.0.in_layers.2",
        "unet.time_embedding.linear_2": "time_embed.2",
        "lora_unet_conv_in": "input_blocks.0.0",
        "unet.conv_out": "out.2",
        "diffusion_model.output_blocks.8.2.conv": "output_blocks.8.2.conv",
        "lora_unet_input_blocks_1_1_proj_in": "input_blocks.1.1.proj_in",
        "lycoris_down_blocks_0_resnets_0_conv1": "input_blocks.1.0.in_layers.2",
        "base_model.model.down_blocks.1.attentions.0.proj_out": "input_blocks.4.1.proj_out",
    },
    "sdxl": {
        "lora_unet_input_blocks_4_1_transformer_blocks_1_attn2_to_k": (
            "input_blocks.4.1.transformer_blocks.1.attn2.to_k"
        ),
        "unet.down_blocks.1.attentions.0.transformer_blocks.1.attn2.to_k": (
            "input_blocks.4.1.transformer_blocks.1.attn2.to_k"
        ),
        "lora_unet_down_blocks_2_attentions_1_transformer_blocks_9_ff_net_2": (
            "input_blocks.8.1.transformer_blocks.9.ff.net.2"
        ),
        "unet.mid_block.attentions.0.transformer_blocks.9.attn1.to_out.0": (
            "middle_block.1.transformer_blocks.9.attn1.to_out.0"
        ),
        "unet.up_blocks.0.attentions.2.transformer_blocks.9.attn1.to_v": (
            "output_blocks.2.1.transformer_blocks.9.attn1.to_v"
        ),
        "unet.up_blocks.1.attentions.0.transformer_blocks.1.attn1.to_v": (
            "output_blocks.3.1.transformer_blocks.1.attn1.to_v"
        ),
        "lora_unet_up_blocks_2_resnets_0_conv1": "output_blocks.6.0.in_layers.2",
        "lora_unet_up_blocks_0_upsamplers_0_conv": "output_blocks.2.2.conv",
        "unet.up_blocks.1.upsamplers.0.conv": "output_blocks.5.2.conv",
        "unet.down_blocks.1.downsamplers.0.conv": "input_blocks.6.0.op",
        "unet.down_blocks.1.resnets.0.conv_shortcut": "input_blocks.4.0.skip_connection",
        "unet.add_embedding.linear_1": "label_emb.0.0",
        "lora_unet_label_emb_0_2": "label_emb.0.2",
        "lora_unet_output_blocks_2_2_conv": "output_blocks.2.2.conv",
        "unet.base_model.model.down_blocks.1.attentions.0.proj_in": "input_blocks.4.1.proj_in",
    },
}
CLIP_LAYER = "text_model.encoder.layers"
TEXT_WRITTEN_BY_HAND = {
    "sd15": {
        "lora_te_text_model_encoder_layers_11_mlp_fc1": f"clip_l.transformer.{CLIP_LAYER}.11.mlp.fc1",
        "text_encoder.text_model.encoder.layers.0.self_attn.q_proj": (
            f"clip_l.transformer.{CLIP_LAYER}.0.self_attn.q_proj"
        ),
        "text_encoder.encoder.layers.0.self_attn.q_proj": (
            f"clip_l.transformer.{CLIP_LAYER}.0.self_attn.q_proj"
        ),
        "base_model.model.text_model.encoder.layers.3.mlp.fc2": f"clip_l.transformer.{CLIP_LAYER}.3.mlp.fc2",
    },
    "sdxl": {
        "lora_te1_text_model_encoder_layers_0_self_attn_out_proj": (
            f"clip_l.transformer.{CLIP_LAYER}.0.self_attn.out_proj"
        ),
        "lora_te2_text_model_encoder_layers_31_mlp_fc2": f"clip_g.transformer.{CLIP_LAYER}.31.mlp.fc2",
        "text_encoder_2.text_model.encoder.layers.7.self_attn.v_proj": (
            f"clip_g.transformer.{CLIP_LAYER}.7.self_attn.v_proj"
        ),
        "lora_te2_text_projection": "clip_g.transformer.text_projection",
        "clip_g.transformer.text_model.encoder.layers.7.self_attn.v_proj": (
            f"clip_g.transformer.{CLIP_LAYER}.7.self_attn.v_proj"
        ),
    },
    "flux": {
        "lora_te1_text_model_encoder_layers_0_mlp_fc1": f"clip_l.transformer.{CLIP_LAYER}.0.mlp.fc1",
        "lora_te3_encoder_block_0_layer_0_SelfAttention_q": (
            "t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q"
        ),
        "lora_te2_encoder_block_23_layer_1_DenseReluDense_wi_0": (
            "t5xxl.transformer.encoder.block.23.layer.1.DenseReluDense.wi_0"
        ),
        "text_encoder_2.encoder.block.5.layer.1.DenseReluDense.wo": (
            "t5xxl.transformer.encoder.block.5.layer.1.DenseReluDense.wo"
        ),
        "text_encoders.transformer.encoder.final_layer_norm": "t5xxl.transformer.encoder.final_layer_norm",
        "text_encoders.t5xxl.transformer.encoder.block.5.layer.0.SelfAttention.o": (
            "t5xxl.transformer.encoder.block.5.layer.0.SelfAttention.o"
        ),
    },
}
FLUX_WRITTEN_BY_HAND = {
    "lora_unet_double_blocks_0_img_attn_qkv": ("double_blocks.0.img_attn.qkv", None),
    "lora_unet_single_blocks_37_linear1": ("single_blocks.37.linear1", None),
    "diffusion_model.double_blocks.18.txt_mlp.2": ("double_blocks.18.txt_mlp.2", None),
    "double_blocks.3.img_mod.lin": ("double_blocks.3.img_mod.lin", None),
    "transformer.transformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", (0, 3072)),
    "transformer.transformer_blocks.0.attn.to_k": ("double_blocks.0.img_attn.qkv", (3072, 3072)),
    "transformer.transformer_blocks.0.attn.to_v": ("double_blocks.0.img_attn.qkv", (6144, 3072)),
    "transformer.transformer_blocks.2.attn.add_k_proj": ("double_blocks.2.txt_attn.qkv", (3072, 3072)),
    "transformer.transformer_blocks.2.attn.to_out.0": ("double_blocks.2.img_attn.proj", None),
    "transformer.transformer_blocks.2.attn.to_add_out": ("double_blocks.2.txt_attn.proj", None),
    "transformer.transformer_blocks.2.ff.net.0.proj": ("double_blocks.2.img_mlp.0", None),
    "transformer.transformer_blocks.2.ff_context.net.2": ("double_blocks.2.txt_mlp.2", None),
    "transformer.transformer_blocks.2.norm1.linear": ("double_blocks.2.img_mod.lin", None),
    "transformer.transformer_blocks.2.norm1_context.linear": ("double_blocks.2.txt_mod.lin", None),
    "transformer.single_transformer_blocks.9.attn.to_v": ("single_blocks.9.linear1", (6144, 3072)),
    "transformer.single_transformer_blocks.9.proj_mlp": ("single_blocks.9.linear1", (9216, 12288)),
    "transformer.single_transformer_blocks.9.proj_out": ("single_blocks.9.linear2", None),
    "transformer.single_transformer_blocks.9.norm.linear": ("single_blocks.9.modulation.lin", None),
    "diffusion_model.single_blocks.9.linear1_qkv": ("single_blocks.9.linear1", (0, 9216)),
    "transformer.x_embedder": ("img_in", None),
    "transformer.context_embedder": ("txt_in", None),
    "transformer.time_text_embed.text_embedder.linear_1": ("vector_in.in_layer", None),
    "transformer.time_text_embed.timestep_embedder.linear_2": ("time_in.out_layer", None),
    "transformer.time_text_embed.guidance_embedder.linear_1": ("guidance_in.in_layer", None),
    "transformer.proj_out": ("final_layer.linear", None),
    "transformer_blocks.0.attn.to_q": ("double_blocks.0.img_attn.qkv", (0, 3072)),
    "lycoris_transformer_blocks_0_attn_to_q": ("double_blocks.0.img_attn.qkv", (0, 3072)),
    "lora_transformer_single_transformer_blocks_0_proj_mlp": ("single_blocks.0.linear1", (9216, 12288)),
    "base_model.model.transformer_blocks.0.ff.net.2": ("double_blocks.0.img_mlp.2", None),
    "transformer.double_blocks.0.img_mlp.0": ("double_blocks.0.img_mlp.0", None),
    "diffusion_model.transformer_blocks.0.attn.to_k": ("double_blocks.0.img_attn.qkv", (3072, 3072)),
}
WRAPPERS = ("", "base_model.model.", "unet.", "transformer.", "diffusion_model.", "_orig_mod.", "module.")


def by_hand(table):
    return [(key, name, weight) for key, names in table.items() for name, weight in names.items()]


@pytest.mark.parametrize(("key", "name", "weight"), by_hand(UNET_WRITTEN_BY_HAND))
def test_a_unet_module_leads_to_its_weight(key, name, weight):
    assert resolve(name, key_map(family(key))) == Route(Target(f"diffusion_model.{weight}"))


@pytest.mark.parametrize(("key", "name", "weight"), by_hand(TEXT_WRITTEN_BY_HAND))
def test_a_text_encoder_module_leads_to_its_weight(key, name, weight):
    assert resolve(name, key_map(family(key))) == Route(Target(f"text_encoders.{weight}"))


@pytest.mark.parametrize(("name", "expected"), FLUX_WRITTEN_BY_HAND.items())
def test_a_flux_module_leads_to_its_weight_or_part(name, expected):
    weight, rows = expected
    part = None if rows is None else Part(0, *rows)
    assert resolve(name, key_map(family("flux"))) == Route(Target(f"diffusion_model.{weight}", part))


def test_the_final_modulation_of_diffusers_has_its_halves_exchanged():
    known = key_map(family("flux"))
    target = Target("diffusion_model.final_layer.adaLN_modulation.1")
    assert resolve("transformer.norm_out.linear", known) == Route(target, swap_halves=True)
    assert resolve("lycoris_norm_out_linear", known) == Route(target, swap_halves=True)
    assert resolve("lora_unet_final_layer_adaLN_modulation_1", known) == Route(target)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("sd15", "lora_te2_text_model_encoder_layers_0_mlp_fc1"),
        ("sd15", "unet.down_blocks.3.attentions.0.proj_in"),
        ("sd15", "unet.down_blocks.0.attentions.0.transformer_blocks.1.attn1.to_q"),
        ("sdxl", "lora_unet_down_blocks_0_attentions_0_proj_in"),
        ("sdxl", "lora_te1_text_model_encoder_layers_12_mlp_fc1"),
        ("sdxl", "text_encoders.clip_h.transformer.text_model.encoder.layers.0.mlp.fc1"),
        ("sdxl", "lora_unet_unknown"),
        ("flux", "transformer.transformer_blocks.19.attn.to_q"),
        ("flux", "transformer.transformer_blocks.0.attn2.to_q"),
        ("flux", "lora_te1_encoder_block_24_layer_0_SelfAttention_q"),
        ("flux", ""),
    ],
)
def test_a_name_the_family_lacks_leads_nowhere(key, name):
    assert resolve(name, key_map(family(key))) is None


@pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.key)
def test_no_spelling_is_given_to_two_targets(one):
    owners = {}
    for names in names_of(one).values():
        spelled = {names.comfyui, names.kohya, names.diffusers, *names.others} - {None}
        for name in spelled:
            assert owners.setdefault(name, names.target) == names.target


@pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.key)
@pytest.mark.parametrize("wrapper", list(itertools.product(WRAPPERS, WRAPPERS)), ids="".join)
def test_wrappers_in_any_order_change_nothing(one, wrapper):
    known = key_map(one)
    names = [name for name in known if not name.startswith(("text_encoders.", "lora_te"))]
    for name in names[::29]:
        assert resolve("".join(wrapper) + name, known) == known[name], name


@pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.key)
def test_an_adapter_name_inside_or_at_the_end_changes_nothing(one):
    known = key_map(one)
    for name in list(known)[::7]:
        head, dot, tail = name.rpartition(".")
        assert resolve(f"{name}.default", known) == known[name]
        if dot:
            assert resolve(f"{head}.default.{tail}", known) == known[name]


def test_a_map_with_flattened_names_alone_answers_dotted_ones():
    route = Route(Target("diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q"))
    known = {"lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q": route}
    assert resolve("unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q", known) == route


def test_a_flattened_name_is_never_guessed_apart():
    known = {"diffusion_model.blocks.0.self_attn.q": Route(Target("diffusion_model.blocks.0.self_attn.q"))}
    assert resolve("lora_unet_blocks_0_self_attn_q", known) is None


LOOSE_WRITTEN_BY_HAND = {
    "diffusion_model.blocks_0_self_attn_q": [
        "blocks.0.self_attn.q",
        "diffusion_model.blocks.0.self_attn.q",
        "model.diffusion_model.blocks.0.self_attn.q",
        "transformer.blocks.0.self_attn.q",
        "base_model.model.blocks.0.self_attn.q",
        "pipe.dit.blocks.0.self_attn.q",
        "lora_unet_blocks_0_self_attn_q",
        "lora_unet__blocks_0_self_attn_q",
        "lycoris_blocks_0_self_attn_q",
        "lora_transformer_blocks_0_self_attn_q",
        "blocks.0.self_attn.q.default",
        "diffusion_model.blocks_0_self_attn_q",
    ],
    "diffusion_model.down_blocks_0_attn1_to_out_0": [
        "unet.down_blocks.0.attn1.to_out.0",
        "unet.down_blocks.0.attn1.processor.to_out",
        "lora_unet_down_blocks_0_attn1_to_out_0",
    ],
    "diffusion_model.transformer_blocks_0_attn_to_q": [
        "lora_unet_transformer_blocks_0_attn_to_q",
        "transformer.transformer_blocks.0.attn.to_q",
        "lora_transformer_transformer_blocks_0_attn_to_q",
    ],
    "text_encoders.te1.text_model_encoder_layers_0_mlp_fc1": [
        "lora_te_text_model_encoder_layers_0_mlp_fc1",
        "lora_te1_text_model_encoder_layers_0_mlp_fc1",
        "text_encoder.text_model.encoder.layers.0.mlp.fc1",
        "text_encoder.encoder.layers.0.mlp.fc1",
        "text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc1",
        "text_model.encoder.layers.0.mlp.fc1",
    ],
    "text_encoders.te2.text_model_encoder_layers_0_mlp_fc1": [
        "lora_te2_text_model_encoder_layers_0_mlp_fc1",
        "text_encoder_2.text_model.encoder.layers.0.mlp.fc1",
        "text_encoders.clip_g.transformer.text_model.encoder.layers.0.mlp.fc1",
    ],
    "text_encoders.t5xxl.encoder_block_0_layer_0_SelfAttention_q": [
        "lora_te2_encoder_block_0_layer_0_SelfAttention_q",
        "lora_te3_encoder_block_0_layer_0_SelfAttention_q",
        "text_encoder_3.encoder.block.0.layer.0.SelfAttention.q",
        "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q",
    ],
    "text_encoders.qwen25_7b.model_layers_0_mlp_up_proj": [
        "text_encoders.qwen25_7b.transformer.model.layers.0.mlp.up_proj",
    ],
}


@pytest.mark.parametrize(
    ("loose", "name"), [(loose, name) for loose, names in LOOSE_WRITTEN_BY_HAND.items() for name in names]
)
def test_every_spelling_of_an_unknown_module_gives_one_loose_name(loose, name):
    assert loose_name(name) == loose


def paths(seed):
    """A dotted path of words, some with underscores, and numbers."""
    chance = random.Random(seed)
    words = ["blocks", "attn", "to_q", "self_attn", "k_img", "linear1", "mlp", "0", "17", "norm_out"]
    return ".".join(["stages", *chance.choices(words, k=chance.randint(1, 6))])


@pytest.mark.parametrize("path", [paths(seed) for seed in range(20)])
def test_a_loose_name_stays_as_it_is(path):
    for name in (loose_name(path), loose_name(f"text_encoder_2.{path}"), loose_name(f"lora_te_{path}")):
        assert loose_name(name) == name


@pytest.mark.parametrize("path", [paths(seed) for seed in range(20)])
def test_dotted_and_flattened_spellings_are_loosely_one(path):
    flattened = path.replace(".", "_")
    assert loose_name(f"diffusion_model.{path}") == loose_name(f"lora_unet_{flattened}")
    assert Target(loose_name(f"text_encoder.{path}")).is_clip
    assert loose_name(f"text_encoder.{path}") == loose_name(f"lora_te1_{flattened}")
