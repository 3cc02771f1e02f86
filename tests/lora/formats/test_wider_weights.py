"""LoRAs for a wider weight than the model's, as control LoRAs of Flux are: zeros fill it up, nothing is lost."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lora_alloy.api import merge
from lora_alloy.core.errors import FileError, SaveError, StackError
from lora_alloy.lora.base import open_base
from lora_alloy.lora.entries import Entry, Model
from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy.lora.inspection import inspect_file
from lora_alloy.lora.stack import build_stack
from lora_alloy.lora.target import Route, Target
from lora_alloy.merging.recipe import Recipe
from lora_alloy.proving import verify
from lora_alloy_testing.comfy_fixtures import comfy_tree

__all__ = ["comfy_tree"]

PLAIN = Recipe(method="weighted_sum", auto_strength=False)
NAME = "diffusion_model.img_in"
UP = torch.tensor([[1.0], [3.0]])
WIDE, NARROW = torch.tensor([[2.0, 4.0, 6.0, 8.0]]), torch.tensor([[10.0, 20.0]])


def lora(down: Tensor, name: str = NAME) -> dict[str, Tensor]:
    return {f"{name}.lora_B.weight": UP, f"{name}.lora_A.weight": down}


def widening(shape: tuple[int, ...] = (2, 4)) -> dict[str, Tensor]:
    return lora(WIDE) | {f"{NAME}.reshape_weight": torch.tensor(shape)}


def control() -> dict[str, Tensor]:
    """As Black Forest Labs release them: bare names, biases, whole norms, and nothing that says how wide it is."""
    return lora(WIDE, "img_in") | {
        "img_in.lora_B.bias": torch.tensor([1.0, 2.0]),
        "single_blocks.0.norm.key_norm.scale": torch.tensor([3.0, 4.0]),
        "double_blocks.0.img_attn.norm.query_norm.scale": torch.tensor([5.0, 6.0]),
    }


def read(tensors: dict[str, Tensor]) -> LoraFile:
    return lora_in_memory("ink", tensors, {})


def model(shape: tuple[int, ...] = (2, 2)) -> Model:
    return Model({NAME: Route(Target(NAME))}, {NAME: shape})


@pytest.mark.parametrize("at_hand", [model(), None], ids=["with the model", "without"])
def test_a_wider_lora_is_merged_as_wide_as_it_is_with_zeros_beside_a_narrower_one(at_hand):
    stack = build_stack([Entry(read(widening())), Entry(read(lora(NARROW)), 0.5)], at_hand)
    (group,) = stack.groups
    assert group.is_wider and group.shape == (2, 4)
    (patch,) = merge(stack, PLAIN)
    assert patch.delta.dense().tolist() == [[7.0, 14.0, 6.0, 8.0], [21.0, 42.0, 18.0, 24.0]]


def test_what_is_saved_says_how_wide_it_is_and_reads_back_as_itself(tmp_path):
    given = tmp_path / "wide.safetensors"
    save_file(widening(), given)
    assert merge([str(given)], PLAIN).save(tmp_path / "out").read_error == 0.0
    saved = load_file(tmp_path / "out.safetensors")
    assert saved[f"{NAME}.reshape_weight"].tolist() == [2, 4]
    assert verify(tmp_path / "out.safetensors", [str(given)]).read_error == 0.0
    with pytest.raises(SaveError, match="wider weight than the model's"):
        merge([str(given)], PLAIN).save(tmp_path / "diffusers", naming="diffusers")


def test_a_shape_that_its_factors_do_not_make_is_damage():
    file = read(widening((2, 5)))
    with pytest.raises(FileError, match=r"for a base weight of \(2, 5\), and its factors make \(2, 4\)"):
        file.load(file.modules[NAME])
    with pytest.raises(FileError, match="whose shape is given by"):
        read(widening((2, 4, 1)))


@pytest.mark.parametrize("shape", [(2, 5), (3, 2), (2, 2, 3, 3)], ids=str)
def test_a_model_that_is_no_narrower_is_refused_with_both_shapes(shape):
    with pytest.raises(StackError) as problem:
        build_stack([Entry(read(widening()))], model(shape))
    assert "(2, 4)" in str(problem.value) and str(shape) in str(problem.value)


def test_a_wider_lora_beside_one_of_a_third_width_is_refused():
    with pytest.raises(StackError, match="does not fit together"):
        build_stack([Entry(read(widening())), Entry(read(lora(torch.ones(1, 3))))], model())


def test_a_lora_that_does_not_say_that_it_is_wider_is_for_another_model():
    with pytest.raises(StackError, match=r"has \(2, 4\) on diffusion_model.img_in, the model has \(2, 2\)"):
        build_stack([Entry(read(lora(WIDE)))], model())


def test_the_norms_of_a_control_lora_replace_the_models(tmp_path):
    base = {
        "model.diffusion_model.img_in.weight": torch.zeros(2, 2),
        "model.diffusion_model.img_in.bias": torch.zeros(2),
        "model.diffusion_model.single_blocks.0.norm.key_norm.scale": torch.ones(2),
        "model.diffusion_model.double_blocks.0.img_attn.norm.query_norm.scale": torch.ones(2),
    }
    save_file(base, tmp_path / "flux.safetensors")
    file = read(control())
    assert {account.state for account in file.accounts} == {"used"}
    found = {
        patch.target.weight.removeprefix("diffusion_model."): patch.delta.dense().tolist()
        for patch in merge([Entry(file)], PLAIN, model=open_base(tmp_path / "flux.safetensors"))
    }
    assert found == {
        "img_in": [[2.0, 4.0, 6.0, 8.0], [6.0, 12.0, 18.0, 24.0]],
        "img_in.bias": [1.0, 2.0],
        "single_blocks.0.norm.key_norm": [2.0, 3.0],
        "double_blocks.0.img_attn.norm.query_norm": [4.0, 5.0],
    }


def test_the_inspection_says_that_a_weight_is_widened(tmp_path):
    save_file(widening(), tmp_path / "ink.safetensors")
    (said,) = (one for one in inspect_file(tmp_path / "ink.safetensors").problems if "wider" in one)
    assert said.startswith("For a wider weight than the model's") and said.endswith("(1 of 1 modules).")


def test_the_norms_of_a_control_lora_are_refused_by_name_without_a_base():
    with pytest.raises(StackError, match="2 of 4 modules are not read.*norm.*replacement of its weight"):
        build_stack([Entry(read(control()))])


def test_a_whole_flux_model_is_no_control_lora():
    names = [f"double_blocks.{block}.img_attn.norm.query_norm.scale" for block in range(30)]
    with pytest.raises(FileError, match="has no LoRA factors|whole model"):
        read({name: torch.ones(2) for name in names} | {"img_in.weight": torch.ones(2, 2)})


@pytest.mark.comfy
@pytest.mark.parametrize("made", [control, widening])
def test_comfyui_widens_the_weight_by_our_adapters_as_by_its_own(comfy_tree, tmp_path, made):
    lora_path, base, out = (tmp_path / f"{name}.safetensors" for name in ("lora", "base", "out"))
    save_file({name: value.clone() for name, value in made().items()}, lora_path)
    save_file({f"{NAME}.weight": torch.tensor([[1.0, 1.0], [1.0, 1.0]])}, base)
    command = [sys.executable, "-m", "lora_alloy_testing.widen_in_comfyui", str(comfy_tree.path)]
    command += map(str, (lora_path, base, out))
    ran = subprocess.run(command, env=comfy_tree.environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = load_file(out)
    expected = [[3.0, 5.0, 6.0, 8.0], [7.0, 13.0, 18.0, 24.0]]
    assert found["ours"].tolist() == found["theirs"].tolist() == expected
