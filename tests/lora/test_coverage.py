"""What of a file a model has: in modules, and exactly in the share of its effect."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_alloy.api import inspect
from lora_alloy.lora.base import open_base
from lora_alloy_testing.small_loras import SDXL, SDXL_TEXT, write_small

NAMES = list(SDXL)


def model(path, left_out=(), wrong=()):
    """A model with the weights that `SDXL` names, but for some."""
    tensors = {"input_blocks.0.0.weight": torch.zeros(320, 4, 3, 3)}
    for name, shape in SDXL.items():
        if name not in left_out:
            place = name.removeprefix("lora_unet_input_blocks_4_1_transformer_blocks_").split("_", 1)
            inner = place[1].replace("_to_", ".to_")
            weight = f"input_blocks.4.1.transformer_blocks.{place[0]}.{inner}.weight"
            tensors[weight] = torch.zeros(8, 8) if name in wrong else torch.zeros(shape)
    save_file(tensors, path)
    return path


def energy(path, names):
    tensors, total = load_file(path), 0.0
    for name in names:
        up, down = tensors[f"{name}.lora_up.weight"].double(), tensors[f"{name}.lora_down.weight"].double()
        total += float((up @ down).square().sum()) * (2.0 / 4) ** 2
    return total


def test_a_model_that_has_all_of_it_has_all_of_its_effect(tmp_path):
    lora, base = write_small(tmp_path / "ink.safetensors"), model(tmp_path / "base.safetensors")
    seen = inspect(lora, model=base)[0].coverage
    assert (seen.model, seen.found_count, seen.missing, seen.misfits) == ("base.safetensors", 4, (), ())
    assert seen.share == 1.0
    assert inspect(lora)[0].coverage is None


@pytest.mark.parametrize("kind", ["left_out", "wrong"])
def test_what_is_lost_counts_by_its_energy(tmp_path, kind):
    lora = write_small(tmp_path / "ink.safetensors")
    tensors = load_file(lora)
    tensors[f"{NAMES[1]}.lora_up.weight"] *= 5
    save_file(tensors, lora)
    seen = inspect(lora, model=open_base(model(tmp_path / "base.safetensors", **{kind: NAMES[1:2]})))[
        0
    ].coverage
    rest = [name for name in NAMES if name != NAMES[1]]
    assert seen.share == pytest.approx(energy(lora, rest) / energy(lora, NAMES), rel=1e-5)
    assert seen.found_count == 3 and {"left_out": seen.missing, "wrong": seen.misfits}[kind] == (NAMES[1],)
    assert seen.share < 0.2 and NAMES[1] in " ".join(seen.sentences())


def test_text_encoders_that_the_file_does_not_hold_are_said_to_be_absent(tmp_path):
    lora = write_small(tmp_path / "ink.safetensors", SDXL | SDXL_TEXT)
    seen = inspect(lora, model=model(tmp_path / "base.safetensors"))[0].coverage
    assert (seen.found_count, len(seen.missing), seen.encoder_count) == (4, 1, 1)


def test_a_file_of_zeros_has_no_share(tmp_path):
    lora = write_small(tmp_path / "ink.safetensors", alpha=0.0)
    assert inspect(lora, model=model(tmp_path / "base.safetensors"))[0].coverage.share is None
