"""What a file is, from its header: hostile headers included."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_alloy.core.tensorfile import TensorFile
from lora_alloy.lora.inspection import inspect_file
from lora_alloy_testing.small_loras import SD15, SDXL, SDXL_PEFT, SDXL_TEXT, write_small

K = "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k"


def test_a_plain_file_is_described_in_full(tmp_path):
    told = {
        "ss_network_module": "networks.lora",
        "ss_base_model_version": "sdxl_base_v1-0",
        "modelspec.trigger_phrase": "inkwash",
        "ss_tag_frequency": json.dumps({"a": {"ink": 3, "cat": 9}, "b": {"ink": 8}}),
    }
    path = write_small(tmp_path / "ink.safetensors", SDXL | SDXL_TEXT, metadata=told)
    seen = inspect_file(path)
    assert (seen.path, seen.size_bytes) == (path, path.stat().st_size)
    assert (seen.family, seen.title, seen.candidates) == (
        "sdxl",
        "Stable Diffusion XL",
        ("Stable Diffusion XL",),
    )
    assert seen.formats == {"LoRA": 5}
    assert seen.ranks == {4: 5}
    assert (seen.alphas.stored_count, seen.alphas.missing_count, seen.alphas.scales) == (5, 0, {0.5: 5})
    assert seen.dtypes == {"F16": 5}
    assert (seen.model_count, seen.clip_count, seen.convolution_count) == (4, 1, 0)
    assert (seen.used_count, seen.skipped, seen.unknown) == (15, {}, ())
    assert seen.base_model == {"ss_base_model_version": "sdxl_base_v1-0"}
    assert (seen.trigger, seen.tags) == ("inkwash", ("ink", "cat"))
    assert seen.problems == ()


def test_only_alphas_are_read(tmp_path, monkeypatch):
    path = write_small(tmp_path / "ink.safetensors")
    read = []
    ordinary = TensorFile.read
    monkeypatch.setattr(TensorFile, "read", lambda self, name: read.append(name) or ordinary(self, name))
    inspect_file(path)
    assert len(read) == 4 and all(name.endswith(".alpha") for name in read)
    read.clear()
    assert inspect_file(path, read_alphas=False).alphas.scales == {}
    assert read == []


def test_uneven_ranks_and_scales_are_shown(tmp_path):
    path = write_small(tmp_path / "ink.safetensors", rank=4, alpha=4.0)
    tensors = load_file(path)
    tensors[f"{K}.lora_up.weight"] = torch.zeros(640, 16)
    tensors[f"{K}.lora_down.weight"] = torch.zeros(16, 2048)
    save_file(tensors, path)
    seen = inspect_file(path)
    assert seen.ranks == {4: 3, 16: 1}
    assert seen.alphas.scales == {0.25: 1, 1.0: 3}


@pytest.mark.parametrize(
    ("alpha", "says"),
    [(0.0, "Alpha is 0 in 4 of 4 modules"), (float("nan"), "Alpha is not a finite number in 4 of 4")],
)
def test_an_alpha_that_cannot_be_meant_is_a_problem(tmp_path, alpha, says):
    seen = inspect_file(write_small(tmp_path / "ink.safetensors", alpha=alpha))
    assert len(seen.problems) == 1 and says in seen.problems[0]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"ss_network_alpha": "8", "ss_network_dim": "16"}, "a scale of 0.5"),
        ({"ss_network_alpha": "16", "ss_network_dim": "16"}, None),
        ({"ss_network_alpha": "None", "ss_network_dim": "0"}, None),
        ({"lora_adapter_metadata": '{"unet.lora_alpha": 8, "unet.r": 32}'}, "a scale of 0.25"),
        ({"lora_adapter_metadata": '{"r": 4, "lora_alpha": 2}'}, "a scale of 0.5"),
        ({"lora_adapter_metadata": '{"r": 16, "lora_alpha": 16, "use_rslora": true}'}, "a scale of 4"),
        ({"lora_adapter_metadata": '{"unet.lora_alpha": 8, "unet.r": 8}'}, None),
        ({"lora_adapter_metadata": "[" * 50_000}, None),
        ({"lora_adapter_metadata": '{"unet.lora_alpha": 1e999, "unet.r": 0}'}, None),
        ({"lora_adapter_metadata": '{"unet.lora_alpha": true, "unet.r": [1]}'}, None),
    ],
)
def test_a_scale_that_only_the_header_knows_is_a_problem(tmp_path, told, says):
    seen = inspect_file(write_small(tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, metadata=told))
    if says is None:
        assert seen.problems == ()
    else:
        assert len(seen.problems) == 1 and says in seen.problems[0] and "store no alpha" in seen.problems[0]


def test_a_stored_alpha_makes_the_headers_one_harmless(tmp_path):
    told = {"ss_network_alpha": "1", "ss_network_dim": "4"}
    assert inspect_file(write_small(tmp_path / "ink.safetensors", metadata=told)).problems == ()


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"lora_alloy.recipe": "{}", "tool": "LoRA Alloy 0.1.0", "ss_network_module": "x"}, "LoRA Alloy"),
        ({"software": '{"name": "ai-toolkit"}', "ss_output_name": "x"}, "ai-toolkit"),
        ({"ot_branch": "master", "ss_output_name": "x"}, "OneTrainer"),
        ({"ss_network_module": "lycoris.kohya"}, "kohya's sd-scripts with LyCORIS"),
        ({"ss_network_module": "networks.lora", "ss_base_model_version": "wan"}, "musubi-tuner"),
        ({"ss_network_module": "networks.lora"}, "kohya's sd-scripts"),
        ({"lora_adapter_metadata": "{}"}, "diffusers with PEFT"),
        ({"software": "[" * 5000}, "kohya's sd-scripts, or one that writes its names"),
        ({}, "kohya's sd-scripts, or one that writes its names"),
    ],
)
def test_the_trainer_is_guessed_with_evidence(tmp_path, told, name):
    seen = inspect_file(write_small(tmp_path / "ink.safetensors", metadata=told))
    assert seen.trainer is not None
    assert seen.trainer.name == name and "`" in seen.trainer.evidence


def test_names_and_shapes_outrank_the_header(tmp_path):
    told = {"ss_base_model_version": "flux1"}
    seen = inspect_file(write_small(tmp_path / "old.safetensors", SD15, metadata=told))
    assert seen.family == "sd15"
    assert seen.problems == (
        "Its header says `flux1`, Flux.1, but its names and shapes are those of Stable Diffusion 1.5; they"
        " decide.",
    )


def test_a_file_for_several_families_says_so(tmp_path):
    seen = inspect_file(write_small(tmp_path / "text.safetensors", SDXL_TEXT))
    assert len(seen.candidates) > 1 and "It may be for" in seen.problems[0]


def test_an_unknown_architecture_is_no_mistake(tmp_path):
    seen = inspect_file(write_small(tmp_path / "new.safetensors", {"mystery.blocks.0.proj": (8, 8)}))
    assert seen.family is None and "no model family known here" in seen.problems[0]


def test_every_tensor_is_accounted_for(tmp_path):
    path = write_small(tmp_path / "mixed.safetensors")
    tensors = load_file(path)
    tensors["lora_unet_input_blocks_5_1_proj_in.oft_r"] = torch.zeros(4, 4)
    tensors["bundle_emb.token.emb"] = torch.zeros(4)
    tensors["something.else"] = torch.zeros(4)
    tensors[f"{K}.lora_down.bias"] = torch.zeros(4)
    save_file(tensors, path)
    seen = inspect_file(path)
    assert seen.used_count + sum(seen.skipped.values()) + len(seen.unknown) == len(tensors)
    assert seen.unknown == ("something.else",)
    kind = "OFT or BOFT of PEFT's old kind"
    assert seen.formats == {"LoRA": 3, kind: 1, "a bundled embedding": 1, "LoRA with more than factors": 1}
    said = " ".join(seen.problems)
    assert "a bias of its down factor" in said and "something.else" in said and "--partial" in said


def test_hostile_headers_are_cut(tmp_path):
    told = {
        "modelspec.trigger_phrase": "x y\n" * 100_000,
        "ss_sd_model_name": "z" * 100_000,
        "ss_tag_frequency": json.dumps({"a": {"w" * 9999: 10**400, "v": "3", "u": None}, "b": 3}),
    }
    seen = inspect_file(write_small(tmp_path / "ink.safetensors", metadata=told))
    assert len(seen.trigger) <= 301 and "\n" not in seen.trigger
    assert len(seen.base_model["ss_sd_model_name"]) <= 301
    assert all(len(tag) <= 301 for tag in seen.tags)
    assert len(json.dumps(seen.to_json())) < 5000


KOHYA = {"ss_network_module": "networks.lora"}


def without_alphas(path, count, metadata):
    """A file of kohya's names that has lost some of its alphas."""
    tensors = load_file(write_small(path))
    for name in list(SDXL)[:count]:
        del tensors[f"{name}.alpha"]
    save_file(tensors, path, metadata)
    return inspect_file(path).problems


def test_kohyas_trainer_without_an_alpha_is_suspicious(tmp_path):
    said = without_alphas(tmp_path / "ink.safetensors", 4, KOHYA)
    assert len(said) == 1 and "always stores alphas" in said[0] and "up to 4 times" in said[0]
    assert without_alphas(tmp_path / "own.safetensors", 4, {}) == ()


def test_alphas_of_a_part_alone_are_suspicious(tmp_path):
    said = without_alphas(tmp_path / "ink.safetensors", 1, {})
    assert len(said) == 1 and "1 of 4 modules store no alpha" in said[0]


@pytest.mark.parametrize(("alpha", "is_odd"), [(4.0, False), (8.0, False), (64.0, True)])
def test_a_scale_that_nobody_trains_with_is_told(tmp_path, alpha, is_odd):
    seen = inspect_file(write_small(tmp_path / "ink.safetensors", rank=4, alpha=alpha))
    assert bool(seen.problems) == is_odd
    told = {"ss_network_args": '{"rs_lora": "True"}'}
    assert (
        inspect_file(write_small(tmp_path / "rs.safetensors", rank=4, alpha=alpha, metadata=told)).problems
        == ()
    )


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts what a process reads")
def test_large_tensors_are_not_read(tmp_path):
    path = tmp_path / "large.safetensors"
    tensors = {}
    for name, (rows, columns) in SDXL.items():
        tensors[f"{name}.lora_up.weight"] = torch.zeros(rows, 512)
        tensors[f"{name}.lora_down.weight"] = torch.zeros(512, columns)
        tensors[f"{name}.alpha"] = torch.tensor(256.0)
    save_file(tensors, path)

    def read_bytes() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    inspect_file(path)  # whatever is loaded once
    before = read_bytes()
    inspect_file(path)
    assert path.stat().st_size > 20_000_000 and read_bytes() - before < 50_000
