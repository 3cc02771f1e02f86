"""What ComfyUI makes of a weight with these files, in every version at hand, is the weight and our delta."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_alloy.lora.file import lora_in_memory
from lora_alloy_testing.base_formats import CASES
from lora_alloy_testing.comfy_fixtures import comfy_tree

__all__ = ["comfy_tree"]

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def weights(comfy_tree, tmp_path_factory):
    """By the number of a case, the patched weight, of those that ComfyUI reads."""
    folder = tmp_path_factory.mktemp("weights")
    given = {f"base {number}": case.base for number, case in enumerate(CASES)}
    for number, case in enumerate(CASES):
        given |= {f"file {number} {name}": value.clone() for name, value in case.tensors.items()}
    names = {str(number): case.module for number, case in enumerate(CASES)}
    save_file(given, folder / "given.safetensors", names)
    script = Path(__file__).with_name("weigh_in_comfyui.py")
    command = [sys.executable, str(script), *map(str, (comfy_tree.path, folder / "given.safetensors"))]
    command.append(str(folder / "found.safetensors"))
    ran = subprocess.run(command, env=comfy_tree.environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return load_file(folder / "found.safetensors")


@pytest.mark.parametrize(
    "number", [n for n, case in enumerate(CASES) if case.is_comfyui], ids=lambda n: str(CASES[n])
)
def test_base_and_delta_are_comfyuis_patched_weight(weights, number):
    case = CASES[number]
    file = lora_in_memory("ink", case.tensors, {})
    ours = case.base + file.load(file.modules[case.module], case.base).flat().reshape(case.base.shape)
    theirs = weights[f"weight {number}"]
    assert float((theirs - case.base).norm()) > 0.01 * float(case.base.norm())
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "number", [n for n, case in enumerate(CASES) if not case.is_comfyui], ids=lambda n: str(CASES[n])
)
def test_what_follows_the_trainer_is_what_comfyui_does_not_apply(weights, number):
    """It reads nothing, fails, or takes DoRA for a plain LoRA; were one of these right, we should follow it."""
    case = CASES[number]
    theirs = weights.get(f"weight {number}", case.base) - case.base
    off = float((theirs.double() - torch.from_numpy(case.expected)).norm())
    assert off > 0.1 * float(theirs.norm()) or not theirs.any()
