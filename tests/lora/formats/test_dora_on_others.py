"""DoRA's magnitudes on LoHa and LoKr are those on the delta they make."""

import pytest
import torch

from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.formats.dora import REASON

NAME = "lora_unet_x"
SHAPES = {
    "LoHa": {"hada_w1_a": (12, 2), "hada_w1_b": (2, 10), "hada_w2_a": (12, 2), "hada_w2_b": (2, 10)},
    "LoKr": {"lokr_w1": (3, 2), "lokr_w2": (4, 5)},
    "LoKr in factors": {"lokr_w1": (3, 2), "lokr_w2_a": (4, 1), "lokr_w2_b": (1, 5)},
}


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("axis", [0, 1], ids=["an output", "an input"])
def test_the_patched_weight_is_stretched_as_comfyui_does(shapes, axis):
    factors = {f"{NAME}.{role}": noise(*shape, seed=at) for at, (role, shape) in enumerate(shapes.items())}
    plain = lora_in_memory("plain", factors, {})
    (module,) = plain.modules.values()
    delta = plain.load(module).dense().double()
    magnitudes = noise(12, 1, seed=9).abs() + 1 if axis == 0 else noise(1, 10, seed=9).abs() + 1
    file = lora_in_memory("dora", factors | {f"{NAME}.dora_scale": magnitudes}, {})
    (stretched,) = file.modules.values()
    base = noise(12, 10, seed=7)
    assert stretched.base_reason == REASON
    # One magnitude an output goes over the base's rows, one an input over the patched columns.
    patched = base.double() + delta
    norm = base.double().norm(dim=1, keepdim=True) if axis == 0 else patched.norm(dim=0, keepdim=True)
    expected = magnitudes.double() / norm * patched - base.double()
    torch.testing.assert_close(file.load(stretched, base).dense().double(), expected, rtol=1e-4, atol=1e-5)
