"""XLabs' processors of Flux lead where ComfyUI's conversion takes them, also where it does not see to it."""

import pytest
import torch

from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.lora.target import Part

WIDTH = 64
LAYERS = {
    "double_blocks.7.processor.qkv_lora1": ("double_blocks.7.img_attn.qkv", 3 * WIDTH, None),
    "double_blocks.7.processor.qkv_lora2": ("double_blocks.7.txt_attn.qkv", 3 * WIDTH, None),
    "double_blocks.7.processor.proj_lora1": ("double_blocks.7.img_attn.proj", WIDTH, None),
    "double_blocks.7.processor.proj_lora2": ("double_blocks.7.txt_attn.proj", WIDTH, None),
    "single_blocks.3.processor.qkv_lora": ("single_blocks.3.linear1", 3 * WIDTH, Part(0, 0, 3 * WIDTH)),
}


@pytest.mark.parametrize("prefix", ["", "diffusion_model."])
def test_every_processor_finds_its_weight(prefix):
    tensors = {}
    for name, (_, rows, _) in LAYERS.items():
        tensors[f"{prefix}{name}.up.weight"] = torch.ones(rows, 4)
        tensors[f"{prefix}{name}.down.weight"] = torch.ones(4, WIDTH)
    file = lora_in_memory("xlabs", tensors, {})
    assert {account.state for account in file.accounts} == {"used"}
    assert file.families[0].key == "flux"
    stack = build_stack([Entry(file)])
    found = {
        (group.target.weight.removeprefix("diffusion_model."), group.target.part) for group in stack.groups
    }
    assert found == {(weight, part) for weight, _, part in LAYERS.values()}
