from dataclasses import replace

import pytest

from lora_alloy.core.errors import RecipeError
from lora_alloy.lora.keys import FAMILIES, NAMINGS, family, key_map, loose_name, parts, resolve, rows, spell
from lora_alloy.lora.keys.table import names_of
from lora_alloy.lora.target import Part, Target

SMALL = {
    "flux": 256,
    "flux2": 256,
    "chroma": 256,
    "sd3": 128,
    "z_image": 256,
    "hunyuan_video": 256,
    "mochi": 128,
}
SIZES = (
    *FAMILIES,
    *(replace(family(key), hidden=hidden) for key, hidden in SMALL.items()),
    replace(family("lumina2"), hidden=96, kv_width=48),
)
WITHOUT_DIFFUSERS = {"anima", "hunyuan_dit"}  # diffusers lacks the model, or calls its norms by others' names
TO_Q = "transformer_blocks.0.attn1.to_q"
CLIP_L = "text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj"
CLIP_G = "text_encoders.clip_g.transformer.text_model.encoder.layers.0.self_attn.q_proj"
QKV, LINEAR1 = "diffusion_model.double_blocks.0.img_attn.qkv", "diffusion_model.single_blocks.0.linear1"
WRITTEN_BY_HAND = [
    (
        "sd15",
        Target(f"diffusion_model.input_blocks.1.1.{TO_Q}"),
        f"diffusion_model.input_blocks.1.1.{TO_Q}",
        "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
        f"unet.down_blocks.0.attentions.0.{TO_Q}",
    ),
    (
        "sdxl",
        Target(f"diffusion_model.input_blocks.4.1.{TO_Q}"),
        f"diffusion_model.input_blocks.4.1.{TO_Q}",
        "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q",
        f"unet.down_blocks.1.attentions.0.{TO_Q}",
    ),
    (
        "sd15",
        Target(CLIP_L),
        CLIP_L,
        "lora_te_text_model_encoder_layers_0_self_attn_q_proj",
        "text_encoder.text_model.encoder.layers.0.self_attn.q_proj",
    ),
    (
        "sdxl",
        Target(CLIP_L),
        CLIP_L,
        "lora_te1_text_model_encoder_layers_0_self_attn_q_proj",
        "text_encoder.text_model.encoder.layers.0.self_attn.q_proj",
    ),
    (
        "sdxl",
        Target(CLIP_G),
        CLIP_G,
        "lora_te2_text_model_encoder_layers_0_self_attn_q_proj",
        "text_encoder_2.text_model.encoder.layers.0.self_attn.q_proj",
    ),
    ("flux", Target(QKV), QKV, "lora_unet_double_blocks_0_img_attn_qkv", None),
    (
        "flux",
        Target(QKV, Part(0, 3072, 3072)),
        "transformer.transformer_blocks.0.attn.to_k",
        None,
        "transformer.transformer_blocks.0.attn.to_k",
    ),
    (
        "flux",
        Target(LINEAR1, Part(0, 9216, 12288)),
        "transformer.single_transformer_blocks.0.proj_mlp",
        None,
        "transformer.single_transformer_blocks.0.proj_mlp",
    ),
    (
        "flux",
        Target("diffusion_model.single_blocks.0.linear2"),
        "diffusion_model.single_blocks.0.linear2",
        "lora_unet_single_blocks_0_linear2",
        "transformer.single_transformer_blocks.0.proj_out",
    ),
]


@pytest.mark.parametrize(("key", "target", "comfyui", "kohya", "diffusers"), WRITTEN_BY_HAND)
def test_a_target_is_spelled_as_the_naming_wants(key, target, comfyui, kohya, diffusers):
    spelled = tuple(spell(target, naming, family(key)) for naming in ("comfyui", "kohya", "diffusers"))
    assert spelled == (comfyui, kohya, diffusers)


@pytest.mark.parametrize("one", SIZES, ids=lambda one: f"{one.key}-{one.hidden}")
@pytest.mark.parametrize("naming", NAMINGS)
def test_what_is_spelled_resolves_to_the_same_target(one, naming):
    known = key_map(one)
    spelled = {target: spell(target, naming, one) for target in names_of(one)}
    for target, name in spelled.items():
        if name is not None:
            route = resolve(name, known)
            assert route is not None and route.target == target, name
    assert len(set(spelled.values()) - {None}) == sum(name is not None for name in spelled.values())


@pytest.mark.parametrize("one", SIZES, ids=lambda one: f"{one.key}-{one.hidden}")
def test_every_spelling_leads_back_to_its_target(one):
    known = key_map(one)
    for name, route in known.items():
        assert name in vars_of(names_of(one)[route.target]), name


def vars_of(names):
    return {names.target.weight, names.comfyui, names.kohya, names.diffusers, *names.others}


@pytest.mark.parametrize("one", SIZES, ids=lambda one: f"{one.key}-{one.hidden}")
def test_every_whole_weight_has_a_name_but_for_fused_ones_in_diffusers(one):
    for target in names_of(one):
        if target.part is None:
            assert spell(target, "comfyui", one) is not None
            assert spell(target, "kohya", one) is not None
            if spell(target, "diffusers", one) is None and one.key not in WITHOUT_DIFFUSERS:
                assert parts(target.weight, rows(target.weight, one), one), target


@pytest.mark.parametrize("one", SIZES, ids=lambda one: f"{one.key}-{one.hidden}")
def test_what_is_written_in_parts_is_the_whole_weight(one):
    """The parts that `parts` gives are targets of the family, one after the other up to the weight's height."""
    fused = {target.weight for target in names_of(one) if target.part is not None}
    for weight in fused:
        height = rows(weight, one)
        found = parts(weight, height, one)
        assert found is not None and found[0].start == 0
        ends = [part.start + part.length for part in found]
        assert [part.start for part in found[1:]] + [height] == ends
        assert all(Target(weight, part) in names_of(one) for part in found)


def test_a_weight_outside_the_family_has_only_its_native_name():
    target = Target("diffusion_model.input_blocks.99.1.proj_in")
    assert spell(target, "comfyui", family("sdxl")) == "diffusion_model.input_blocks.99.1.proj_in"
    assert spell(target, "kohya", family("sdxl")) is None
    assert spell(target, "diffusers", family("sdxl")) is None


def test_a_weight_of_an_unknown_family_is_spelled_by_the_general_rules():
    target = Target("diffusion_model.blocks.0.self_attn.q")
    assert spell(target, "comfyui", None) == "diffusion_model.blocks.0.self_attn.q"
    assert spell(target, "kohya", None) == "lora_unet_blocks_0_self_attn_q"
    assert spell(target, "diffusers", None) is None
    assert spell(Target(target.weight, Part(0, 0, 8)), "comfyui", None) is None


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("transformer.blocks.0.attn.q", "lora_unet_blocks_0_attn_q"),
        ("text_encoder_2.text_model.layers.0.fc", "lora_te2_text_model_layers_0_fc"),
        ("lora_te3_encoder_block_0_q", "lora_te3_encoder_block_0_q"),
        ("text_encoders.qwen25_7b.transformer.model.layers.0.q", None),
    ],
)
def test_a_loose_name_is_written_with_the_prefix_of_kohya(name, written):
    target = Target(loose_name(name))
    assert spell(target, "comfyui", None) == written
    assert spell(target, "kohya", None) == written
    assert written is None or loose_name(written) == target.weight


def test_an_unknown_naming_or_family_is_refused_by_name():
    with pytest.raises(ValueError, match="khoya.*kohya"):
        spell(Target(QKV), "khoya", None)
    with pytest.raises(RecipeError, match="sdlx.*sdxl"):
        family("sdlx")


@pytest.mark.parametrize("hidden", [256, 3072])
def test_fused_weights_of_flux_divide_by_their_own_height(hidden):
    flux = family("flux")
    q, k, v = (Part(0, place * hidden, hidden) for place in range(3))
    assert parts(QKV, 3 * hidden, flux) == (q, k, v)
    assert parts("diffusion_model.double_blocks.18.txt_attn.qkv", 3 * hidden, flux) == (q, k, v)
    assert parts(LINEAR1, 7 * hidden, flux) == (q, k, v, Part(0, 3 * hidden, 4 * hidden))


def test_a_weight_that_is_not_fused_has_no_parts():
    assert parts("diffusion_model.double_blocks.0.img_attn.proj", 3072, family("flux")) is None
    assert parts("diffusion_model.input_blocks.4.1.proj_in", 3072, family("sdxl")) is None
    assert parts("text_encoders.clip_l.transformer.text_projection", 768, family("flux")) is None
    assert parts(QKV, 9216, None) is None


def test_a_height_that_does_not_divide_has_no_parts():
    assert parts(QKV, 3 * 256 + 1, family("flux")) is None
    assert parts(LINEAR1, 9 * 3072, family("flux")) is None  # Flux.2's


def test_parts_are_named_for_the_hidden_width_at_hand():
    small = replace(family("flux"), hidden=256)
    fused = parts(LINEAR1, 7 * 256, small)
    assert fused is not None
    assert [spell(Target(LINEAR1, part), "diffusers", small) for part in fused] == [
        "transformer.single_transformer_blocks.0.attn.to_q",
        "transformer.single_transformer_blocks.0.attn.to_k",
        "transformer.single_transformer_blocks.0.attn.to_v",
        "transformer.single_transformer_blocks.0.proj_mlp",
    ]
