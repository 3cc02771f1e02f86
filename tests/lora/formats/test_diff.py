"""Full differences of weights, biases and norms, from file to file."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import lora_alloy
from lora_alloy.lora.file import open_lora
from lora_alloy.merging.recipe import Recipe

NAME = "diffusion_model.input_blocks.4.1.transformer_blocks.0.attn2.to_k"
NORM = "diffusion_model.input_blocks.4.1.transformer_blocks.0.norm1"


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def thin(tmp_path):
    tensors = {f"{NAME}.lora_up.weight": noise(640, 4), f"{NAME}.lora_down.weight": noise(4, 2048, seed=1)}
    save_file(tensors, tmp_path / "thin.safetensors")
    return str(tmp_path / "thin.safetensors"), tensors


@pytest.fixture
def whole(tmp_path):
    tensors = {
        f"{NAME}.diff": noise(640, 2048, seed=2),
        f"{NAME}.diff_b": noise(640, seed=3),
        f"{NORM}.w_norm": noise(640, seed=4),
        f"{NORM}.b_norm": noise(640, seed=5),
    }
    save_file(tensors, tmp_path / "whole.safetensors")
    return str(tmp_path / "whole.safetensors"), tensors


def test_every_tensor_is_used_and_every_parameter_has_its_target(whole):
    file = open_lora(whole[0])
    assert {account.state for account in file.accounts} == {"used"}
    assert set(file.modules) == {NAME, f"{NAME}.bias", NORM, f"{NORM}.bias"}


def test_a_difference_and_a_lora_add_up_exactly_and_the_saved_file_holds_the_sum(whole, thin, tmp_path):
    merged = lora_alloy.merge(
        [f"{whole[0]}:0.5", f"{thin[0]}:-2"], Recipe(method="weighted_sum", auto_strength=False)
    )
    proof = merged.save(tmp_path / "out")
    assert proof.read_error == 0.0
    saved = load_file(tmp_path / "out.safetensors")
    product = thin[1][f"{NAME}.lora_up.weight"].double() @ thin[1][f"{NAME}.lora_down.weight"].double()
    expected = 0.5 * whole[1][f"{NAME}.diff"].double() - 2 * product
    np.testing.assert_allclose(saved[f"{NAME}.diff"].double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(saved[f"{NAME}.diff_b"], 0.5 * whole[1][f"{NAME}.diff_b"])
    torch.testing.assert_close(saved[f"{NORM}.diff"], 0.5 * whole[1][f"{NORM}.w_norm"])
    torch.testing.assert_close(saved[f"{NORM}.diff_b"], 0.5 * whole[1][f"{NORM}.b_norm"])


def test_a_rank_makes_an_ordinary_lora_of_a_difference_and_states_what_it_costs(whole, tmp_path):
    merged = lora_alloy.merge([whole[0]], Recipe(rank=8))
    proof = merged.save(tmp_path / "out")
    saved = load_file(tmp_path / "out.safetensors")
    assert saved[f"{NAME}.lora_down.weight"].shape == (8, 2048)
    assert proof.merge_error > 0.9  # noise has no leading directions


def test_factors_beside_a_difference_do_not_count_as_in_comfyui(tmp_path, thin):
    tensors = thin[1] | {f"{NAME}.diff": noise(640, 2048, seed=2)}
    save_file(tensors, tmp_path / "both.safetensors")
    file = open_lora(tmp_path / "both.safetensors")
    assert [account.state for account in file.accounts].count("skipped") == 2
    (module,) = file.modules.values()
    torch.testing.assert_close(file.load(module).dense(), tensors[f"{NAME}.diff"])
