"""What ComfyUI's own reader and arithmetic make of every format that needs no base weight, ours makes too."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_alloy.lora.file import open_lora
from lora_alloy_testing.builders import difference
from lora_alloy_testing.comfy_fixtures import comfy_tree
from lora_alloy_testing.exact_modules import CASES

__all__ = ["comfy_tree"]

pytestmark = pytest.mark.comfy
STRENGTH = 0.7


def name_of(case: str) -> str:
    return f"module {list(CASES).index(case)}"


@pytest.fixture(scope="module")
def in_both(comfy_tree, tmp_path_factory):
    """By module, what ComfyUI adds at `STRENGTH`, and the file as we read it."""
    folder = tmp_path_factory.mktemp("exact")
    tensors, weights = {}, {}
    for case, made in CASES.items():
        tensors |= {f"{name_of(case)}.{end}": value.contiguous() for end, value in made.tensors.items()}
        weights[f"{name_of(case)}.weight"] = torch.zeros(made.delta.shape)
        weights[f"{name_of(case)}.bias"] = torch.zeros(made.delta.shape[0])
    save_file(tensors, folder / "lora.safetensors")
    save_file(weights, folder / "base.safetensors")
    command = [sys.executable, "-m", "lora_alloy_testing.patch_in_comfyui", str(comfy_tree.path)]
    command += [str(folder / f"{name}.safetensors") for name in ("lora", "base", "out")] + [str(STRENGTH)]
    ran = subprocess.run(command, env=comfy_tree.environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return load_file(folder / "out.safetensors"), open_lora(folder / "lora.safetensors")


# Torch multiplies no transposed matrices by Kronecker, which these are in ComfyUI: it logs an error, and the weight
# stays as it was.
FAILING = [name for name in CASES if "lokr" in name and "Tucker" in name]
READ = [name for name, made in CASES.items() if made.is_read_by_comfyui]


@pytest.mark.parametrize("case", [name for name in READ if name not in FAILING])
def test_comfyui_adds_what_we_read(in_both, case):
    gained, file = in_both
    delta = file.load(file.modules[name_of(case)])
    expected = gained[f"{name_of(case)}.weight"].reshape(len(gained[f"{name_of(case)}.weight"]), -1)
    assert difference(delta.flat().double().numpy() * STRENGTH, expected.numpy()) < 1e-5


@pytest.mark.parametrize("case", FAILING)
def test_where_comfyui_applies_a_tucker_lokr_at_all_it_adds_what_we_read(in_both, case):
    gained, file = in_both
    expected = gained[f"{name_of(case)}.weight"].numpy()
    ours = file.load(file.modules[name_of(case)]).flat().double().numpy()
    assert not expected.any() or difference(ours * STRENGTH, expected.reshape(ours.shape)) < 1e-5


def test_what_comfyui_leaves_out_is_known(in_both):
    """A bias of an up, and the scalar of old files: both are said in the inspection."""
    gained, file = in_both
    assert f"{name_of('lora with a bias')}.bias" in file.modules
    assert not any(key.endswith(".bias") for key in gained)
    for case in ("loha with a scalar", "lokr with a scalar", "lora with a scalar"):
        scalar = float(CASES[case].tensors["scalar"])
        ours = file.load(file.modules[name_of(case)]).flat().double().numpy()
        theirs = gained[f"{name_of(case)}.weight"].numpy()
        assert difference(ours * STRENGTH, theirs.reshape(ours.shape) * scalar) < 1e-5
