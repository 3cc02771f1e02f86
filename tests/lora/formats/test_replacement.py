"""Replaced weights: the delta is the replacement less the base, so a base is needed; ComfyUI's is the same at 1."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_alloy.api import merge
from lora_alloy.core.errors import FileError, StackError
from lora_alloy.lora.entries import Model
from lora_alloy.lora.file import lora_in_memory, open_lora
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.lora.target import Route, Target
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.comfy_fixtures import comfy_tree

__all__ = ["comfy_tree"]

PLAIN = Recipe(method="weighted_sum", auto_strength=False)
NORM = "diffusion_model.input_blocks.4.1.transformer_blocks.0.norm1"


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


BASE, SET = noise(640, seed=1), noise(640, seed=2)
MODEL = Model(
    {NORM: Route(Target(NORM))}, {NORM: (640,)}, base=lambda weight: BASE if weight == NORM else None
)


def entry(strength: float = 1.0, value: torch.Tensor = SET) -> Entry:
    return Entry(lora_in_memory("ink", {f"{NORM}.set_weight": value}, {}), strength)


def test_at_strength_1_the_weight_becomes_the_replacement_and_at_a_half_it_goes_half_way():
    for strength in (1.0, 0.5):
        (patch,) = merge([entry(strength)], PLAIN, model=MODEL)
        torch.testing.assert_close(BASE + patch.delta.dense(), torch.lerp(BASE, SET, strength))


def test_without_a_base_model_it_is_refused_by_name():
    with pytest.raises(StackError, match=rf"`{NORM}` comes with a replacement of its weight.*base weight"):
        build_stack([entry()])


def test_a_replacement_of_another_shape_is_refused():
    other = Model(MODEL.known, {}, base=lambda weight: noise(320))
    with pytest.raises((FileError, StackError), match="another model"):
        merge([entry()], PLAIN, model=other)


@pytest.mark.comfy
def test_comfyui_puts_the_same_weight_in_at_strength_1(comfy_tree, tmp_path):
    name = "module"
    save_file({f"{name}.set_weight": SET}, tmp_path / "lora.safetensors")
    save_file({f"{name}.weight": BASE}, tmp_path / "base.safetensors")
    command = [sys.executable, "-m", "lora_alloy_testing.patch_in_comfyui", str(comfy_tree.path)]
    command += [str(tmp_path / f"{part}.safetensors") for part in ("lora", "base", "out")] + ["1.0"]
    ran = subprocess.run(command, env=comfy_tree.environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    gained = load_file(tmp_path / "out.safetensors")[f"{name}.weight"]
    file = open_lora(tmp_path / "lora.safetensors")
    torch.testing.assert_close(
        file.load(file.modules[name], BASE).dense().double(), gained, rtol=1e-5, atol=1e-6
    )
