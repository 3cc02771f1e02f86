"""Which family a file is of, where several have the same names: by depth, by widths, by what only one of them has."""

import time
from dataclasses import replace

import pytest

from lora_alloy.lora.keys import FAMILIES, NAMINGS, candidates, detect, family, spell
from lora_alloy.lora.keys.listing import listed
from lora_alloy.lora.keys.table import names_of

RANK = 4
LISTED = [one for one in FAMILIES if one.key not in ("sd15", "sd2", "sdxl", "flux")]


def linear(outputs, inputs):
    return (outputs, RANK), (RANK, inputs)


def released(one):
    """By target, the outputs and inputs of the released model's weights that LoRAs are trained on."""
    sizes = {}
    for entry in listed(one.key):
        for index in entry.blocks or (None,):
            path = entry.path if index is None else entry.path.replace("#", str(index))
            sizes[f"diffusion_model.{path}"] = entry.shape
    return {
        target: (target.part.length if target.part else sizes[target.weight][0], sizes[target.weight][1])
        for target in names_of(one)
        if not target.is_clip and len(sizes[target.weight]) == 2
    }


def file_of(one, naming, choose=lambda weight: True):
    """The modules of a LoRA on what `choose` takes, in a naming: wholes if it has names for them, else parts."""
    shapes = {}
    for target, (outputs, inputs) in released(one).items():
        name = spell(target, naming, one)
        if name and choose(target.weight) and (naming == "diffusers" or target.part is None):
            shapes[name] = linear(outputs, inputs)
    return shapes


def keys(shapes):
    return [one.key for one in candidates(shapes)]


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("one", LISTED, ids=lambda one: one.key)
def test_a_family_is_known_by_all_its_modules_in_any_naming(one, naming):
    shapes = file_of(one, naming)
    if not shapes:
        assert naming == "diffusers" and one.key == "anima"
        return
    assert detect(shapes) == one
    assert detect({f"base_model.model.{name}": shape for name, shape in shapes.items()}) == one


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("one", LISTED, ids=lambda one: one.key)
def test_a_family_is_among_those_that_one_module_in_its_middle_may_be_of(one, naming):
    shapes = file_of(one, naming)
    for name in list(shapes)[:: max(1, len(shapes) // 12)]:
        assert one.key in keys({name: shapes[name]}), name


# Flux.1 is told apart from Chroma by its modulation, LTX-2 from LTX-Video by its sound: not by attention alone.
ALIKE = {
    "chroma": {"flux"},
    "sd3": {"sd35_medium"},
    "sd35_medium": {"sd3"},
    "ltx_13b": {"ltx2"},
}


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("one", LISTED, ids=lambda one: one.key)
def test_a_lora_of_attention_in_all_blocks_leaves_no_doubt(one, naming):
    shapes = file_of(one, naming, lambda weight: "attn" in weight or "attention" in weight)
    assert one.key in keys(shapes) or not shapes
    assert set(keys(shapes)) - {one.key} <= ALIKE.get(one.key, set())


WAN = {"wan_1_3b": 1536, "wan_5b": 3072, "wan_14b": 5120}


@pytest.mark.parametrize("name", ["diffusion_model.blocks.7.self_attn.q", "lora_unet_blocks_7_self_attn_q"])
@pytest.mark.parametrize(("key", "width"), WAN.items())
def test_wan_goes_by_its_width(key, width, name):
    assert keys({name: linear(width, width)}) == [key]


def test_a_block_that_only_the_large_wan_has_rules_the_others_out():
    assert keys({"lora_unet_blocks_39_self_attn_q": ((), ())}) == ["wan_14b"]


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("diffusion_model.single_blocks.3.linear1", linear(9 * 6144, 6144), ["flux2"]),
        ("diffusion_model.single_blocks.3.linear1", linear(9 * 4096, 4096), ["klein_9b"]),
        ("diffusion_model.single_blocks.3.linear1", linear(9 * 3072, 3072), ["klein_4b"]),
        (
            "diffusion_model.single_blocks.3.linear1",
            linear(7 * 3072, 3072),
            ["flux", "chroma", "hunyuan_video"],
        ),
        ("diffusion_model.single_blocks.3.linear1", linear(7 * 3584, 3584), ["hunyuan_image"]),
        ("lora_unet_layers_3_attention_qkv", linear(3 * 3840, 3840), ["z_image"]),
        ("lora_unet_layers_3_attention_qkv", linear(2304 + 2 * 768, 2304), ["lumina2"]),
        ("diffusion_model.layers.3.adaLN_modulation.0", linear(15360, 256), ["z_image"]),
        ("diffusion_model.layers.3.adaLN_modulation.1", linear(9216, 1024), ["lumina2"]),
        ("transformer.transformer_blocks.3.attn1.to_q", linear(2048, 2048), ["ltx"]),
        ("transformer.transformer_blocks.3.attn1.to_q", linear(1152, 1152), ["pixart"]),
        ("transformer.transformer_blocks.40.attn.to_q", linear(3072, 3072), ["qwen_image"]),
        ("transformer.transformer_blocks.3.img_mlp.net.2", linear(3072, 12288), ["qwen_image"]),
        ("transformer.transformer_blocks.3.audio_attn1.to_q", linear(2048, 2048), ["ltx2"]),
        ("transformer.blocks.3.attn1.to_q", linear(5120, 5120), ["wan_14b"]),
        ("lora_unet_joint_blocks_37_x_block_attn_qkv", linear(3 * 2432, 2432), ["sd35_large"]),
        ("lora_unet_joint_blocks_3_x_block_attn2_qkv", linear(3 * 1536, 1536), ["sd35_medium"]),
        ("diffusion_model.double_blocks.53.img_attn.qkv", linear(3 * 2048, 2048), ["hunyuan_video_15"]),
        ("lora_unet_double_blocks_19_img_mlp_fc1", linear(4 * 3072, 3072), ["hunyuan_video"]),
        ("diffusion_model.distilled_guidance_layer.in_proj", linear(5120, 64), ["chroma"]),
        ("lora_unet_blocks_3_cross_attn_output_proj", linear(2048, 2048), ["anima"]),
    ],
)
def test_one_module_may_be_enough(name, shape, expected):
    assert set(keys({name: shape})) == set(expected)


def test_hunyuan_video_and_flux_are_told_apart_by_how_deep_a_whole_file_goes():
    for key, other in (("hunyuan_video", "flux"), ("flux", "hunyuan_video")):
        depth = 20 if key == "hunyuan_video" else 19
        shapes = {f"double_blocks.{block}.img_attn.qkv": linear(9216, 3072) for block in range(depth)}
        found = keys(shapes)
        assert key in found and other not in found


def test_a_native_lora_with_mlps_and_without_modulation_is_chroma_rather_than_flux():
    shapes = file_of(family("chroma"), "comfyui", lambda weight: "distilled" not in weight)
    assert keys(shapes)[0] == "chroma"
    modulated = shapes | {"diffusion_model.double_blocks.0.img_mod.lin": linear(6 * 3072, 3072)}
    assert keys(modulated) == ["flux"]


SMALL = {
    "sd3": 128,
    "flux2": 256,
    "chroma": 256,
    "z_image": 256,
    "hunyuan_video": 256,
    "mochi": 256,
    "pixart": 144,
}


@pytest.mark.parametrize("naming", ["comfyui", "diffusers"])
@pytest.mark.parametrize(("key", "hidden"), SMALL.items())
def test_a_smaller_model_shows_its_hidden_width(key, hidden, naming):
    one = family(key)
    assert one.hidden
    shapes = {
        name: linear(
            *(size * hidden // one.hidden if size % one.hidden == 0 else size for size in (up[0], down[1]))
        )
        for name, (up, down) in file_of(one, naming).items()
    }
    found = next(found for found in candidates(shapes) if found.key == key)
    assert found == replace(one, hidden=hidden)


@pytest.mark.parametrize("split", [True, False])
def test_lumina_2_shows_the_width_of_its_keys_too(split):
    """Four query heads and two of keys and values, each 24 wide."""
    names = {
        "transformer.layers.0.attn.to_q": linear(96, 96),
        "transformer.layers.0.attn.to_k": linear(48, 96),
    }
    whole = {"lora_unet_layers_0_attention_qkv": linear(192, 96)}
    found = detect(names if split else whole)
    assert found is not None and (found.key, found.hidden, found.kv_width) == ("lumina2", 96, 48)


def test_a_qkv_too_low_for_lumina_2_is_not_of_it():
    assert "lumina2" not in keys({"lora_unet_layers_0_attention_qkv": linear(96, 96)})


def test_thousands_of_modules_are_judged_in_a_moment():
    """Against all families, the second time; generous, as machines differ."""
    shapes = dict(list(file_of(family("ltx2"), "kohya").items())[:2500])
    detect(shapes)
    start = time.process_time()
    assert detect(shapes) == family("ltx2")
    assert time.process_time() - start < 0.5
