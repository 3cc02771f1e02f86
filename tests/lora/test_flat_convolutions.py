"""Factors of a convolution may be flat, as LyCORIS saves them; what is saved has the weight's own kernel again.

ComfyUI adds no difference whose shape is not the weight's: saved flat, it would be lost without an error.
"""

import pytest
import torch
from safetensors.torch import load_file

from lora_alloy.api import merge
from lora_alloy.lora import keys
from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import difference
from lora_alloy_testing.exact_modules import loha

PLAIN = Recipe(method="weighted_sum", auto_strength=False)
CONVOLUTION = "lora_unet_down_blocks_0_resnets_0_conv1"
CROSSING = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k"  # tells SD 1.5


def file_of(shape: tuple[int, ...], seed: int):
    made = loha(shape, (4, 4), seed=seed)
    tensors = {f"{CONVOLUTION}.{end}": value for end, value in made.tensors.items()}
    tensors |= {
        f"{CROSSING}.lora_up.weight": torch.ones(8, 1),
        f"{CROSSING}.lora_down.weight": torch.ones(1, 768),
    }
    return lora_in_memory(f"ink {seed}", tensors, {}), made


def test_a_flat_loha_of_full_rank_is_saved_with_the_kernel_of_its_weight(tmp_path):
    (one, made), (two, other) = file_of((12, 8, 3, 3), 1), file_of((12, 8, 3, 3), 2)
    merge([Entry(one, 0.5), Entry(two)], PLAIN).save(tmp_path / "out")
    saved = load_file(tmp_path / "out.safetensors")
    (stored,) = (value for name, value in saved.items() if name.endswith(".diff"))
    assert stored.shape == (12, 8, 3, 3)
    assert difference(stored.double().numpy(), 0.5 * made.delta + other.delta) < 1e-6


@pytest.mark.parametrize("family", keys.FAMILIES, ids=lambda family: family.key)
def test_every_convolution_of_a_unet_has_its_kernel_and_nothing_else_has_one(family):
    known = keys.key_map(family)
    found: dict[tuple[int, ...], set[str]] = {}
    for route in known.values():
        weight = route.target.weight
        kernel = keys.unflattened(weight, (4, 36), family)[2:]
        found.setdefault(kernel, set()).add(weight)
    if family.key not in ("sd15", "sd2", "sdxl"):
        assert set(found) == {()}
        return
    wide = {weight for weight in found[3, 3] if weight.startswith("diffusion_model.")}
    assert wide == found[3, 3]
    ends = {weight.rsplit(".", 1)[1] for weight in wide}
    assert ends == {
        "0",
        "2",
        "3",
        "op",
        "conv",
    }  # the first, in_layers.2 and out.2, out_layers.3, up and down
    projections = any(weight.endswith("proj_in") for weight in found.get((1, 1), ()))
    assert projections == (family.key == "sd15")
    assert not any("transformer_blocks" in weight or "embed" in weight for weight in wide)


def test_a_width_that_no_kernel_divides_is_left_as_it_is():
    (sd15,) = (family for family in keys.FAMILIES if family.key == "sd15")
    weight = "diffusion_model.input_blocks.1.0.in_layers.2"
    assert keys.unflattened(weight, (12, 71), sd15) == (12, 71)
    assert keys.unflattened(weight, (12, 72), sd15) == (12, 8, 3, 3)
    assert keys.unflattened(weight, (12, 8, 3, 3), sd15) == (12, 8, 3, 3)
