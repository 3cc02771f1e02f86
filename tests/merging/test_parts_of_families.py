"""Fused and split attention of every family that has it: they meet, and the saved file gives the dense sum back."""

import numpy as np
import pytest

from lora_alloy.api import load, merge
from lora_alloy.core.errors import StackError
from lora_alloy.lora import keys
from lora_alloy.lora.entries import Model
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.lora.target import Part, Route, Target
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import Factors, entry_of, file_of, noise, write_lora

PLAIN = Recipe(method="weighted_sum", auto_strength=False)
WIDTH = 24
# By family: the fused weight of one block, its shape, the names of its parts and their heights, and what else has to be
# in the file for it to be of that family.
CASES = {
    "z_image": (
        "layers.3.attention.qkv",
        "layers.3.attention.to_{}",
        (24, 24, 24),
        {"layers.3.adaLN_modulation.0": (96, 256)},
    ),
    "lumina2": (
        "layers.3.attention.qkv",
        "layers.3.attn.to_{}",
        (24, 8, 8),
        {"layers.3.adaLN_modulation.1": (96, 1024)},
    ),
    "sd35_large": (
        "joint_blocks.3.x_block.attn.qkv",
        "transformer_blocks.3.attn.to_{}",
        (24, 24, 24),
        {"joint_blocks.37.x_block.mlp.fc1": (96, 24)},
    ),
    "chroma": (
        "double_blocks.3.img_attn.qkv",
        "transformer_blocks.3.attn.to_{}",
        (24, 24, 24),
        {"distilled_guidance_layer.layers.0.in_layer": (40, 40)},
    ),
    "flux2": (
        "double_blocks.3.img_attn.qkv",
        "transformer_blocks.3.attn.to_{}",
        (24, 24, 24),
        {"double_blocks.3.img_mlp.0": (144, 24), "single_blocks.40.linear1": (216, 24)},
    ),
    "hunyuan_video": (
        "double_blocks.3.img_attn.qkv",
        "double_blocks.3.img_attn_{}",
        (24, 24, 24),
        {"double_blocks.19.img_mlp.0": (96, 24), "single_blocks.39.linear1": (168, 24)},
    ),
    "mochi": (
        "blocks.3.attn.qkv_x",
        "transformer_blocks.3.attn1.to_{}",
        (24, 24, 24),
        {"blocks.3.attn.proj_x": (24, 24)},
    ),
    "pixart": (
        "blocks.3.attn.qkv",
        "transformer_blocks.3.attn1.to_{}",
        (24, 24, 24),
        {"blocks.3.mlp.fc1": (96, 24)},
    ),
}


def pair(key: str) -> tuple[dict[str, Factors], dict[str, Factors], np.ndarray]:
    """A fused LoRA, one with its k and v apart, and what both add up to on the whole weight."""
    weight, spelled, heights, others = CASES[key]
    rows = sum(heights)
    more = {f"diffusion_model.{name}": noise(shape, 2, seed=7) for name, shape in others.items()}
    whole = noise((rows, WIDTH), 4, seed=1)
    k, v = (noise((heights[place], WIDTH), 3, seed=2 + place) for place in (1, 2))
    expected = whole.delta.copy()
    expected[heights[0] : heights[0] + heights[1]] += k.delta
    expected[heights[0] + heights[1] :] += v.delta
    apart = {f"transformer.{spelled.format(letter)}": one for letter, one in (("k", k), ("v", v))}
    return {f"diffusion_model.{weight}": whole} | more, apart | more, expected


def whole_again(path, family: keys.Family, rows: int) -> np.ndarray:
    """What a file adds to the fused weight, whatever it is split into."""
    file = load(path)
    found = np.zeros((rows, WIDTH))
    for module in file.modules.values():
        route = keys.resolve(module.name, keys.key_map(family))
        assert route is not None
        if route.target.weight == f"diffusion_model.{CASES[family.key][0]}":
            part = route.target.part or Part(0, 0, rows)
            found[part.start : part.start + part.length] += file.load(module).dense().double().numpy()
    return found


@pytest.mark.parametrize("naming", keys.NAMINGS)
@pytest.mark.parametrize("key", CASES)
def test_a_fused_and_a_split_lora_add_up_and_are_saved_so(key, naming, tmp_path):
    fused, apart, expected = pair(key)
    paths = [
        write_lora(tmp_path / "fused.safetensors", fused, "peft"),
        write_lora(tmp_path / "apart.safetensors", apart, "peft"),
    ]
    merged = merge([entry_of(path) for path in paths], PLAIN)
    assert merged.stack.family is not None and merged.stack.family.key == key
    targets = {group.target for group in merged.stack.groups if CASES[key][0] in group.target.weight}
    assert {target.part.length for target in targets if target.part} == set(CASES[key][2])
    merged.save(tmp_path / "out.safetensors", naming=naming)
    found = whole_again(tmp_path / "out.safetensors", merged.stack.family, len(expected))
    np.testing.assert_allclose(found, expected, atol=1e-5)


LUMINA = "diffusion_model.layers.0.attention.qkv"


def lumina_model() -> Model:
    """ComfyUI's map of a Lumina 2 with two heads of keys to four of queries: its slices take them to be as many."""
    slices = {
        f"diffusion_model.layers.0.attention.to_{letter}": Route(Target(LUMINA, Part(0, place * 96, 96)))
        for place, letter in enumerate("qkv")
    }
    return Model(slices | {LUMINA: Route(Target(LUMINA))}, {LUMINA: (192, 96)})


def test_slices_that_comfyui_takes_wrongly_are_not_believed():
    split = {
        "diffusion_model.layers.0.attention.to_q": noise((96, 96), 2, seed=1),
        "diffusion_model.layers.0.attention.to_k": noise((48, 96), 2, seed=2),
        "diffusion_model.layers.0.attention.to_v": noise((48, 96), 2, seed=3),
    }
    stack = build_stack([Entry(file_of(split, "ink", "peft"))], lumina_model())
    assert [(group.target.weight, group.target.part) for group in stack.groups] == [
        (LUMINA, Part(0, 0, 96)),
        (LUMINA, Part(0, 96, 48)),
        (LUMINA, Part(0, 144, 48)),
    ]


def test_a_slice_beyond_the_weight_of_an_unknown_model_has_no_place():
    weight = "diffusion_model.mystery.qkv"
    known = {"lora_unet_mystery_v": Route(Target(weight, Part(0, 48, 24))), weight: Route(Target(weight))}
    model = Model(known, {weight: (64, 24)})
    with pytest.raises(StackError, match="none of its 1 modules is in this model"):
        build_stack([Entry(file_of({"lora_unet_mystery_v": noise((24, 24), 2)}))], model)


def wan(width: int, blocks: int = 3) -> dict[str, tuple[int, int]]:
    return {
        f"diffusion_model.blocks.{block}.self_attn.{end}": (width, width)
        for block in range(blocks)
        for end in "qk"
    }


def model_of(weights: dict[str, tuple[int, int]]) -> Model:
    return Model({name: Route(Target(name)) for name in weights}, weights)


def test_a_lora_of_the_wrong_wan_is_refused_with_both_named():
    small = Entry(file_of({name: noise(shape, 2) for name, shape in wan(1536).items()}, "ink", "peft"))
    with pytest.raises(StackError, match=r"`ink` is for Wan 2.1 1.3B, and the model is Wan 2.1/2.2 14B"):
        build_stack([small], model_of(wan(5120)))
    assert build_stack([small], model_of(wan(1536))).family == keys.family("wan_1_3b")


def test_wans_of_two_widths_do_not_mix():
    entries = [
        Entry(file_of({name: noise(shape, 2) for name, shape in wan(width).items()}, label, "peft"))
        for width, label in ((1536, "small"), (5120, "large"))
    ]
    with pytest.raises(StackError, match=r"Wan 2.1 1.3B: `small`; Wan 2.1/2.2 14B: `large`"):
        build_stack(entries)


def test_a_lora_of_diffusers_names_finds_its_way_in_a_comfyui_that_has_none():
    lora = {
        "transformer.blocks.0.attn1.to_q": noise((5120, 5120), 2),
        "transformer.blocks.1.attn1.to_k": noise((5120, 5120), 2),
    }
    stack = build_stack([Entry(file_of(lora, "ink", "peft"))], model_of(wan(5120)))
    assert [group.target.weight for group in stack.groups] == [
        "diffusion_model.blocks.0.self_attn.q",
        "diffusion_model.blocks.1.self_attn.k",
    ]


def test_the_model_decides_where_a_file_may_be_of_several_families():
    """Three rows of attention under names that Flux, SD 3, HunyuanVideo and others have in diffusers."""
    split = {f"transformer.transformer_blocks.0.attn.to_{end}": noise((24, 24), 2) for end in "qkv"}
    weight = "diffusion_model.joint_blocks.0.x_block.attn.qkv"
    stack = build_stack([Entry(file_of(split, "ink", "peft"))], model_of({weight: (72, 24)}))
    assert stack.family is not None and stack.family.key.startswith("sd3")
    assert {group.target.weight for group in stack.groups} == {weight}


def test_an_invented_architecture_still_merges(tmp_path):
    names = [f"foo.blocks.{block}.bar" for block in range(3)]
    paths = [
        write_lora(
            tmp_path / f"{seed}.safetensors", {name: noise((24, 16), 2, seed=seed) for name in names}, "peft"
        )
        for seed in (1, 2)
    ]
    merged = merge([entry_of(path) for path in paths], PLAIN)
    assert merged.stack.family is None
    merged.save(tmp_path / "out.safetensors")
    assert len(load(tmp_path / "out.safetensors").modules) == 3
