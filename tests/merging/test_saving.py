"""Saved files: read back, they are the merge, in every naming and family; what they say of themselves."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lora_alloy.api import Merged, load, merge
from lora_alloy.core.errors import RecipeError, SaveError
from lora_alloy.lora import keys
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, Factors, dense, difference, entry_of, noise, toy_lora, write_lora
from lora_alloy_testing.flux import SIZES, flux_lora, fused, split

NAMINGS = keys.NAMINGS
SDXL = {
    "lora_unet_input_blocks_4_1_transformer_blocks_1_attn2_to_k": (32, 2048),
    "lora_unet_middle_block_1_transformer_blocks_9_ff_net_0_proj": (40, 10),
    "lora_unet_output_blocks_2_2_conv": (12, 8, 3, 3),
    "lora_te1_text_model_encoder_layers_0_mlp_fc1": (20, 12),
    "lora_te2_text_model_encoder_layers_31_mlp_fc2": (20, 12),
}
SD2 = {
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k": (32, 1024),
    "lora_te_text_model_encoder_layers_20_mlp_fc1": (20, 12),
}


def lora_on(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Factors]:
    return {
        name: noise(shape, 4, seed=100 * seed + n, alpha=2.0)
        for n, (name, shape) in enumerate(shapes.items())
    }


def family_stack(family: str, folder: Path) -> Merged:
    """Two LoRAs of one family, merged; for Flux one fused and one split."""
    if family == "flux":
        loras = [(fused(flux_lora(1)), "kohya"), (split(flux_lora(2)), "peft")]
    elif family == "flux fused":
        loras = [(fused(flux_lora(n)), "kohya") for n in (1, 2)]
    elif family == "flux split":
        loras = [(split(flux_lora(n)), "peft") for n in (1, 2)]
    else:
        shapes = {"sd15": {name: shape for name, (_, shape) in TOY.items()}, "sdxl": SDXL, "sd2": SD2}[family]
        loras = [(lora_on(shapes, n), "kohya") for n in (1, 2)]
    folder.mkdir(exist_ok=True)
    return merge(
        [entry_of(write_lora(folder / f"{n}.safetensors", *lora), 0.8) for n, lora in enumerate(loras)]
    )


FAMILIES = ("sd15", "sdxl", "sd2", "flux", "flux fused", "flux split")


def on_weights(given: Merged) -> dict[str, np.ndarray]:
    """What a merge adds to each whole weight, parts in their rows."""
    found: dict[str, np.ndarray] = {}
    for patch, delta in zip(given, dense(given).values(), strict=True):
        name, part = patch.target.weight, patch.target.part
        if part is None:
            found[name] = found.get(name, 0) + delta
            continue
        height = SIZES[name.removeprefix("diffusion_model.")][0] * 32
        whole = found.setdefault(name, np.zeros((height, *delta.shape[1:])))
        whole[part.start : part.start + part.length] += delta
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("naming", NAMINGS)
def test_a_saved_file_read_again_is_the_merge(family, naming, tmp_path):
    result = family_stack(family, tmp_path / "in")
    proof = result.save(tmp_path / "out", naming=naming)
    assert proof.path == tmp_path / "out.safetensors"
    assert proof.read_error == 0.0
    assert proof.size_bytes == proof.path.stat().st_size
    again = on_weights(merge([proof.path]))
    expected = on_weights(result)
    assert again.keys() == expected.keys()
    for name, delta in expected.items():
        assert difference(again[name], delta) < 1e-6, name
        assert again[name].shape == delta.shape


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("naming", NAMINGS)
def test_all_namings_are_of_the_family_that_was_merged(family, naming, tmp_path):
    result = family_stack(family, tmp_path / "in")
    result.save(tmp_path / "out", naming=naming)
    assert load(tmp_path / "out.safetensors").families[0].key == result.plan.family


@pytest.mark.parametrize("family", ["sd15", "flux"])
@pytest.mark.parametrize("naming", ["comfyui", "kohya"])
def test_alpha_is_the_rank_of_every_module(family, naming, tmp_path):
    family_stack(family, tmp_path / "in").save(tmp_path / "out", naming=naming)
    tensors = load_file(tmp_path / "out.safetensors")
    downs = {name: value for name, value in tensors.items() if name.endswith(".lora_down.weight")}
    assert len(tensors) == 3 * len(downs)
    for name, down in downs.items():
        module = name.removesuffix(".lora_down.weight")
        assert float(tensors[f"{module}.alpha"]) == down.shape[0]
        assert tensors[f"{module}.alpha"].shape == ()
        assert tensors[f"{module}.lora_up.weight"].shape[1] == down.shape[0]


@pytest.mark.parametrize("family", ["sd15", "flux"])
def test_diffusers_naming_has_pefts_factors_and_no_alpha(family, tmp_path):
    family_stack(family, tmp_path / "in").save(tmp_path / "out", naming="diffusers")
    names = load_file(tmp_path / "out.safetensors")
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in names)
    prefixes = ("transformer.",) if family == "flux" else ("unet.", "text_encoder.")
    assert all(name.startswith(prefixes) for name in names)


def test_names_are_those_the_naming_is_known_for(tmp_path):
    result = family_stack("sdxl", tmp_path / "in")
    first = {}
    for naming in NAMINGS:
        result.save(tmp_path / naming, naming=naming)
        first[naming] = sorted(load_file(tmp_path / f"{naming}.safetensors"))[0]
    assert first == {
        "comfyui": "diffusion_model.input_blocks.4.1.transformer_blocks.1.attn2.to_k.alpha",
        "kohya": "lora_te1_text_model_encoder_layers_0_mlp_fc1.alpha",
        "diffusers": "text_encoder.text_model.encoder.layers.0.mlp.fc1.lora_A.weight",
    }


def test_convolutions_have_their_kernel_in_the_down_factor(tmp_path):
    family_stack("sdxl", tmp_path / "in").save(tmp_path / "out", naming="kohya")
    tensors = load_file(tmp_path / "out.safetensors")
    assert tensors["lora_unet_output_blocks_2_2_conv.lora_up.weight"].shape == (12, 8, 1, 1)
    assert tensors["lora_unet_output_blocks_2_2_conv.lora_down.weight"].shape == (8, 8, 3, 3)


def test_the_halves_that_diffusers_exchanges_are_exchanged_in_its_naming_only(tmp_path):
    result = family_stack("flux", tmp_path / "in")
    ups = {}
    for naming, name in (
        ("diffusers", "transformer.norm_out.linear.lora_B.weight"),
        ("kohya", "lora_unet_final_layer_adaLN_modulation_1.lora_up.weight"),
    ):
        result.save(tmp_path / naming, naming=naming)
        ups[naming] = load_file(tmp_path / f"{naming}.safetensors")[name]
    assert torch.cat(ups["diffusers"].chunk(2)[::-1]).equal(ups["kohya"])


def test_modules_of_an_unknown_architecture_keep_a_name_from_the_files(tmp_path):
    paths = [
        write_lora(tmp_path / f"{n}.safetensors", {name: noise((24, 16), 4, seed=n)})
        for n, name in enumerate(("lora_unet_blocks_0_q", "diffusion_model.blocks.0.q"))
    ]
    merge(list(paths)).save(tmp_path / "out")
    assert list(load(tmp_path / "out.safetensors").modules) == ["diffusion_model.blocks.0.q"]


def test_an_unknown_naming_is_refused_by_name(tmp_path):
    with pytest.raises(RecipeError, match="No naming is called 'khoya'. Did you mean 'kohya'"):
        family_stack("sd15", tmp_path / "in").save(tmp_path / "out", naming="khoya")


def test_a_saved_file_may_replace_one_of_its_inputs(tmp_path):
    paths = [write_lora(tmp_path / f"{n}.safetensors", toy_lora(n)) for n in range(2)]
    result = merge([entry_of(path) for path in paths])
    expected = dense(result)
    result.save(paths[0])
    again = dense(merge([paths[0]]))
    assert all(difference(again[name], expected[name]) < 1e-6 for name in expected)


@pytest.mark.parametrize("gains", [(0.5, 2.0), (-1.0, 0.0), (1.0, 0.25)])
def test_gains_are_baked_in_branch_by_branch(gains, tmp_path):
    result = family_stack("sd15", tmp_path / "in")
    result.save(tmp_path / "out", gain=gains[0], clip_gain=gains[1])
    again = dense(merge([tmp_path / "out.safetensors"]))
    for name, delta in dense(result).items():
        assert difference(again[name], gains[name.startswith("text_encoders.")] * delta) < 1e-6


def test_a_place_that_cannot_be_written_is_refused_and_nothing_is_left_there(tmp_path):
    result = family_stack("sd15", tmp_path / "in")
    (tmp_path / "out.safetensors").mkdir()
    with pytest.raises(SaveError, match="is a folder"):
        result.save(tmp_path / "out.safetensors")
    (tmp_path / "file").write_text("here")
    with pytest.raises(SaveError, match="is a file, so nothing can be written below it"):
        result.save(tmp_path / "file" / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "in", "out.safetensors"]


class TestTheHeader:
    def metadata(self, result: Merged, path: Path, **how: object) -> dict[str, str]:
        result.save(path, **how)  # type: ignore[arg-type]
        with safe_open(path, "pt") as file:
            return file.metadata()

    @pytest.fixture
    def result(self, tmp_path: Path) -> Merged:
        told = {"modelspec.trigger_phrase": "ink style", "ss_tag_frequency": "secret"}
        paths = [
            write_lora(tmp_path / "ink ü.safetensors", toy_lora(1), metadata=told),
            write_lora(tmp_path / "oil.safetensors", toy_lora(2, rank=2)),
        ]
        return merge([entry_of(paths[0], 0.8, 0.5), entry_of(paths[1], -0.25, preserve=True)])

    def test_holds_strings_alone_and_no_date(self, result, tmp_path):
        told = self.metadata(result, tmp_path / "out.safetensors")
        assert all(isinstance(key, str) and isinstance(value, str) for key, value in told.items())
        assert not any("date" in key or "time" in key for key in told)
        assert not re.search(r"20\d\d-\d\d", " ".join(told.values()))
        assert str(tmp_path) not in " ".join(told.values())
        assert "secret" not in " ".join(told.values())

    def test_names_sources_strengths_hashes_and_the_recipe(self, result, tmp_path):
        told = self.metadata(result, tmp_path / "out.safetensors", gain=0.5)
        assert json.loads(told["lora_alloy.sources"]) == [
            {
                "label": source.label,
                "sha256": source.sha256,
                "strength": source.strength,
                "clip_strength": source.clip_strength,
                "preserve": source.preserve,
                "conflict_mode": source.conflict_mode,
                "key_filter": source.key_filter,
            }
            for source in result.plan.sources
        ]
        assert Recipe.from_json(json.loads(told["lora_alloy.recipe"])) == Recipe()
        assert json.loads(told["lora_alloy.saved"])["gain"] == 0.5
        assert told["source_loras"] == "ink ü.safetensors @ 0.8, oil.safetensors @ -0.25"
        assert told["modelspec.trigger_phrase"] == "ink style"

    def test_states_the_error_that_the_proof_states(self, result, tmp_path):
        told = self.metadata(result, tmp_path / "out.safetensors", gain=0.7)
        proof = result.save(tmp_path / "out.safetensors", gain=0.7)
        assert float(told["lora_alloy.error"]) == pytest.approx(proof.merge_error, rel=1e-3)

    @pytest.mark.parametrize(
        ("family", "base", "architecture"),
        [
            ("sd15", "sd_v1", "stable-diffusion-v1/lora"),
            ("sdxl", "sdxl_base_v1-0", "stable-diffusion-xl-v1-base/lora"),
            ("flux", "flux1", "flux-1-dev/lora"),
        ],
    )
    def test_tells_the_base_model(self, family, base, architecture, tmp_path):
        told = self.metadata(family_stack(family, tmp_path / "in"), tmp_path / "out.safetensors")
        assert told["ss_base_model_version"] == base
        assert told["modelspec.architecture"] == architecture

    def test_tells_rank_and_alpha_to_kohyas_readers(self, result, tmp_path):
        told = self.metadata(result, tmp_path / "out.safetensors", naming="kohya")
        assert told["ss_network_module"] == "networks.lora"
        assert told["ss_network_dim"] == told["ss_network_alpha"] == "6"

    def test_may_be_given_more(self, result, tmp_path):
        assert self.metadata(result, tmp_path / "x.safetensors", notes={"a": "b"})["a"] == "b"
