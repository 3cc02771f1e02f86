"""Rows of blocks: how many a file changes, and which it leaves out."""

import torch

from lora_alloy.lora import keys
from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.inspection import inspect_opened
from lora_alloy.lora.stretches import stretches
from lora_alloy.lora.target import Target


def of(pattern, blocks, family="flux"):
    targets = [Target(f"diffusion_model.{pattern.format(block)}") for block in blocks]
    return stretches(targets, keys.family(family) if family else None)


def test_missing_blocks_are_named():
    found = of("double_blocks.{}.img_mlp.0", [block for block in range(19) if block not in (3, 7)])
    assert [(one.name, one.depth, one.missing) for one in found] == [("double_blocks", 19, (3, 7))]
    assert found[0].text() == "double_blocks 17 of 19 (3, 7 missing)"


def test_runs_are_written_short_and_uneven_blocks_are_told():
    found = of("single_blocks.{}.linear1", [*range(0, 30), 4])
    assert found[0].text() == (
        "single_blocks 30 of 38 (30–37 missing; 1 module in most, another number in 4)"
    )


def test_a_whole_row_needs_no_more_words():
    assert of("single_blocks.{}.linear1", range(38))[0].text() == "single_blocks 38 of 38"


def test_no_block_of_a_unet_is_missed_since_they_differ():
    found = of("input_blocks.{}.1.transformer_blocks.0.attn1.to_q", [4, 5, 7, 8], "sdxl")
    assert found[0].missing == () and found[0].text() == "input_blocks 4–5, 7–8"


def test_the_inspection_tells_them_and_json_too():
    tensors = {}
    for block in (0, 2):
        name = f"lora_unet_double_blocks_{block}_img_mlp_0"
        tensors[f"{name}.lora_up.weight"] = torch.ones(12288, 1)
        tensors[f"{name}.lora_down.weight"] = torch.ones(1, 3072)
    told = inspect_opened(lora_in_memory("ink", tensors, {})).to_json()["stretches"][0]
    assert told["counts"] == {"0": 1, "2": 1} and 1 in told["missing"]
