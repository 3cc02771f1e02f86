"""One LoRA under the names of several trainers merges as one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lora_alloy.api import merge
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing import reference
from lora_alloy_testing.builders import (
    Factors,
    dense,
    difference,
    entry_of,
    largest_difference,
    noise,
    write_lora,
)
from lora_alloy_testing.flux import SIZES, flux_lora, fused, row_parts, split

EXACT = 3e-6
PLAIN = Recipe(method="weighted_sum", auto_strength=False)
AVERAGES = reference.BLENDS

# A target's shape, and its names by who writes them. Module names as in the trainers' own files.
SD15: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {
    "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k": (
        (32, 768),
        {
            "kohya": "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k",
            "diffusers": "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k",
            "ai-toolkit": "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k",
            "old diffusers": "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn2.processor.to_k",
            "raw PEFT": "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k",
            "LyCORIS": "lycoris_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k",
            "ComfyUI": "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k",
        },
    ),
    "diffusion_model.output_blocks.3.1.transformer_blocks.0.attn1.to_out.0": (
        (24, 24),
        {
            "kohya": "lora_unet_up_blocks_1_attentions_0_transformer_blocks_0_attn1_to_out_0",
            "diffusers": "unet.up_blocks.1.attentions.0.transformer_blocks.0.attn1.to_out.0",
            "ai-toolkit": "unet.up_blocks.1.attentions.0.transformer_blocks.0.attn1.to_out.0",
            "old diffusers": "unet.up_blocks.1.attentions.0.transformer_blocks.0.attn1.processor.to_out",
            "raw PEFT": "base_model.model.up_blocks.1.attentions.0.transformer_blocks.0.attn1.to_out.0",
            "LyCORIS": "lycoris_up_blocks_1_attentions_0_transformer_blocks_0_attn1_to_out_0",
            "ComfyUI": "diffusion_model.output_blocks.3.1.transformer_blocks.0.attn1.to_out.0",
        },
    ),
    "text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj": (
        (768, 768),
        {
            "kohya": "lora_te_text_model_encoder_layers_0_self_attn_q_proj",
            "diffusers": "text_encoder.text_model.encoder.layers.0.self_attn.q_proj",
            "ai-toolkit": "lora_te_text_model_encoder_layers_0_self_attn_q_proj",
            "old diffusers": "text_encoder.text_model.encoder.layers.0.self_attn.q_proj",
            "raw PEFT": "text_encoder.text_model.encoder.layers.0.self_attn.q_proj",
            "LyCORIS": "lora_te_text_model_encoder_layers_0_self_attn_q_proj",
            "ComfyUI": "text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj",
        },
    ),
}
SDXL: dict[str, tuple[tuple[int, ...], dict[str, str]]] = {
    "diffusion_model.input_blocks.4.1.transformer_blocks.1.attn2.to_k": (
        (32, 2048),
        {
            "kohya": "lora_unet_input_blocks_4_1_transformer_blocks_1_attn2_to_k",
            "diffusers": "unet.down_blocks.1.attentions.0.transformer_blocks.1.attn2.to_k",
            "ai-toolkit": "lora_unet_down_blocks_1_attentions_0_transformer_blocks_1_attn2_to_k",
            "ComfyUI": "diffusion_model.input_blocks.4.1.transformer_blocks.1.attn2.to_k",
        },
    ),
    "diffusion_model.middle_block.1.transformer_blocks.9.ff.net.0.proj": (
        (40, 10),
        {
            "kohya": "lora_unet_middle_block_1_transformer_blocks_9_ff_net_0_proj",
            "diffusers": "unet.mid_block.attentions.0.transformer_blocks.9.ff.net.0.proj",
            "ai-toolkit": "lora_unet_mid_block_attentions_0_transformer_blocks_9_ff_net_0_proj",
            "ComfyUI": "diffusion_model.middle_block.1.transformer_blocks.9.ff.net.0.proj",
        },
    ),
    "diffusion_model.output_blocks.2.2.conv": (
        (12, 8, 3, 3),
        {
            "kohya": "lora_unet_output_blocks_2_2_conv",
            "diffusers": "unet.up_blocks.0.upsamplers.0.conv",
            "ai-toolkit": "lora_unet_up_blocks_0_upsamplers_0_conv",
            "ComfyUI": "diffusion_model.output_blocks.2.2.conv",
        },
    ),
    "text_encoders.clip_g.transformer.text_model.encoder.layers.31.mlp.fc2": (
        (20, 12),
        {
            "kohya": "lora_te2_text_model_encoder_layers_31_mlp_fc2",
            "diffusers": "text_encoder_2.text_model.encoder.layers.31.mlp.fc2",
            "ai-toolkit": "lora_te2_text_model_encoder_layers_31_mlp_fc2",
            "ComfyUI": "text_encoders.clip_g.transformer.text_model.encoder.layers.31.mlp.fc2",
        },
    ),
}
ENDINGS = {
    "kohya": "kohya",
    "LyCORIS": "kohya",
    "ComfyUI": "kohya",
    "old diffusers": "diffusers, processors",
    "raw PEFT": "peft, raw",
}


def unet_files(table: dict[str, tuple[tuple[int, ...], dict[str, str]]], folder: Path) -> dict[str, Path]:
    """One LoRA, a file for each trainer; PEFT's kind folds alpha into the up factor."""
    lora = {
        target: noise(shape, 4, seed=n, alpha=2.0) for n, (target, (shape, _)) in enumerate(table.items())
    }
    paths = {}
    for trainer in next(iter(table.values()))[1]:
        ending = ENDINGS.get(trainer, "peft")
        modules = {
            table[target][1][trainer]: one if ending == "kohya" else replace(one.times(0.5), alpha=None)
            for target, one in lora.items()
        }
        # Old processors attach `_lora` to `to_k`; text encoders of that time had layers of their own.
        is_text = {name: name.startswith(("text_encoder", "lora_te")) for name in modules}
        folder.mkdir(exist_ok=True)
        paths[trainer] = folder / f"{trainer}.safetensors"
        if trainer == "old diffusers":
            write_mixed(paths[trainer], modules, is_text)
        else:
            write_lora(paths[trainer], modules, ending, {"trainer": trainer})
    return paths


def write_mixed(path: Path, modules: dict[str, Factors], is_text: dict[str, bool]) -> None:
    from safetensors.torch import save_file

    from lora_alloy_testing.builders import tensors_of

    tensors = {}
    for name, one in modules.items():
        tensors |= tensors_of({name: one}, "diffusers, text" if is_text[name] else "diffusers, processors")
    save_file(tensors, path)


def unet_lora(table: dict[str, tuple[tuple[int, ...], dict[str, str]]]) -> dict[str, np.ndarray]:
    return {
        target: noise(shape, 4, seed=n, alpha=2.0).delta
        for n, (target, (shape, _)) in enumerate(table.items())
    }


UNETS = {"sd15": SD15, "sdxl": SDXL}


@pytest.mark.parametrize("family", UNETS)
def test_every_renaming_alone_is_the_lora_itself(family, tmp_path):
    for trainer, path in unet_files(UNETS[family], tmp_path).items():
        result = merge([path])
        assert result.plan.family == family, trainer
        assert largest_difference(dense(result), unet_lora(UNETS[family])) < EXACT


@pytest.mark.parametrize("family", UNETS)
def test_renamings_of_one_lora_sum_to_it_at_their_summed_strength(family, tmp_path):
    paths = unet_files(UNETS[family], tmp_path).values()
    strengths = [1.0, -0.5, 0.8, 0.3, 0.2, -0.1, 0.4][: len(paths)]
    result = merge([entry_of(path, w) for path, w in zip(paths, strengths, strict=True)], PLAIN)
    expected = {target: sum(strengths) * delta for target, delta in unet_lora(UNETS[family]).items()}
    assert largest_difference(dense(result), expected) < EXACT


@pytest.mark.parametrize("family", UNETS)
@pytest.mark.parametrize("recipe", [*(Recipe(method=name) for name in AVERAGES), Recipe()], ids=str)
def test_an_average_of_renamings_of_one_lora_is_that_lora(family, recipe, tmp_path):
    paths = unet_files(UNETS[family], tmp_path).values()
    assert largest_difference(dense(merge(list(paths), recipe)), unet_lora(UNETS[family])) < EXACT


@pytest.fixture
def flux_files(tmp_path: Path) -> list[Path]:
    lora = flux_lora(1, alpha=2.0)
    folded = {name: replace(one.times(0.5), alpha=None) for name, one in lora.items()}
    return [
        write_lora(tmp_path / "kohya.safetensors", fused(lora)),
        write_lora(tmp_path / "diffusers.safetensors", split(folded), "peft"),
        write_lora(tmp_path / "toolkit.safetensors", split(folded), "peft", {"software": "{}"}),
        write_lora(tmp_path / "bare.safetensors", split(folded, ""), "peft, raw"),
        write_lora(tmp_path / "lycoris.safetensors", flat_split(lora), "kohya"),
    ]


def flat_split(lora: dict[str, Factors]) -> dict[str, Factors]:
    return {"lycoris_" + name.replace(".", "_"): one for name, one in split(lora, "").items()}


def flux_deltas() -> dict[str, np.ndarray]:
    """The LoRA's deltas, fused weights cut into their parts."""
    found = {}
    for name, factors in flux_lora(1, alpha=2.0).items():
        parts = row_parts(name, factors.up.shape[0]).values()
        for rows in parts:
            found[f"diffusion_model.{name}[{rows.start}:{rows.stop}]"] = factors.delta[rows]
        if not parts:
            found[f"diffusion_model.{name}"] = factors.delta
    return found


def test_renamings_of_one_flux_lora_sum_to_it_at_their_summed_strength(flux_files):
    strengths = [1.0, -0.5, 0.8, 0.3, 0.2]
    result = merge([entry_of(path, w) for path, w in zip(flux_files, strengths, strict=True)], PLAIN)
    expected = {target: 1.8 * delta for target, delta in flux_deltas().items()}
    assert result.plan.family == "flux"
    assert largest_difference(dense(result), expected) < EXACT


@pytest.mark.parametrize("recipe", [*(Recipe(method=name) for name in AVERAGES), Recipe()], ids=str)
def test_an_average_of_renamings_of_one_flux_lora_is_that_lora(recipe, flux_files):
    assert largest_difference(dense(merge(list(flux_files), recipe)), flux_deltas()) < EXACT


@pytest.mark.parametrize("place", range(5))
def test_every_renaming_of_a_flux_lora_alone_is_the_lora_itself(place, flux_files):
    found = dense(merge([flux_files[place]]))
    whole = {name: factors.delta for name, factors in flux_lora(1, alpha=2.0).items()}
    for name in SIZES:
        own = [delta for target, delta in found.items() if target.split("[")[0] == f"diffusion_model.{name}"]
        assert difference(np.concatenate(own), whole[name]) < EXACT


UNKNOWN_SPELLINGS = {
    "bare": "blocks.{}.self_attn.q",
    "ComfyUI": "diffusion_model.blocks.{}.self_attn.q",
    "diffusers": "transformer.blocks.{}.self_attn.q",
    "raw PEFT": "base_model.model.blocks.{}.self_attn.q",
    "kohya": "lora_unet_blocks_{}_self_attn_q",
    "double underscore": "lora_unet__blocks_{}_self_attn_q",
    "LyCORIS": "lycoris_blocks_{}_self_attn_q",
    "DiffSynth": "pipe.dit.blocks.{}.self_attn.q",
}


def test_an_unknown_architecture_merges_by_module_name_across_spellings(tmp_path):
    lora = {block: noise((24, 16), 4, seed=block) for block in range(12)}
    paths = [
        write_lora(
            tmp_path / f"{trainer}.safetensors",
            {spelling.format(block): one for block, one in lora.items()},
            "kohya" if "lora_unet" in spelling else "peft",
            {"trainer": trainer},
        )
        for trainer, spelling in UNKNOWN_SPELLINGS.items()
    ]
    result = merge([entry_of(path, 0.5) for path in paths], PLAIN)
    assert result.plan.family is None
    assert len(result) == 12
    for patch, delta in zip(result, dense(result).values(), strict=True):
        block = int(patch.target.weight.split("_")[2])
        assert difference(delta, 4.0 * lora[block].delta) < EXACT


def test_an_unknown_text_encoder_merges_with_strengths_of_its_own(tmp_path):
    lora = noise((24, 16), 4, seed=1)
    names = ("lora_te1_model_layers_0_mlp_up", "text_encoder.model.layers.0.mlp.up")
    paths = [write_lora(tmp_path / f"{n}.safetensors", {name: lora}) for n, name in enumerate(names)]
    result = merge([entry_of(path, 5.0, 0.25) for path in paths], PLAIN)
    (delta,) = dense(result).values()
    assert difference(delta, 0.5 * lora.delta) < EXACT
