"""LyCORIS' own modules and PEFT's own layers give the deltas we read, where they mean the same as ComfyUI."""

import pytest
import torch
from torch import nn

from lora_alloy.lora.file import lora_in_memory
from lora_alloy_testing.base_formats import CASES, NAME, SHAPE, Case, base_of, noise
from lora_alloy_testing.builders import Factors, tensors_of

MODULES = {"oft": "DiagOFTModule", "boft": "ButterflyOFTModule", "glora": "GLoRAModule", "ia3": "IA3Module"}


def layer_of(base: torch.Tensor) -> nn.Module:
    outputs, inputs, *kernel = base.shape
    layer = (
        nn.Conv2d(inputs, outputs, kernel[0], bias=False)
        if kernel
        else nn.Linear(inputs, outputs, bias=False)
    )
    layer.weight.data.copy_(base)
    return layer


def delta_of(case: Case) -> torch.Tensor:
    file = lora_in_memory("ink", case.tensors, {})
    return file.load(file.modules[case.module], case.base).flat().reshape(case.base.shape)


@pytest.mark.parametrize("case", [case for case in CASES if case.lycoris], ids=str)
@torch.no_grad()
def test_lycoris_adds_the_delta_we_read(case: Case) -> None:
    modules = pytest.importorskip("lycoris.modules", reason="LyCORIS is the reference")
    kind = getattr(modules, MODULES[case.lycoris])
    tensors = {name.removeprefix(f"{NAME}."): value for name, value in case.tensors.items()}
    layer = layer_of(case.base)
    if case.lycoris == "ia3":
        made = kind(NAME, layer, 1.0, train_on_input=bool(tensors["on_input"]))
    elif case.lycoris == "glora":
        made = kind(NAME, layer, 1.0, 4, float(tensors.get("alpha", 4.0)))
    else:
        size = tensors["oft_blocks"].shape[-1]
        made = kind(NAME, layer, 1.0, size, constraint=0, rescaled="rescale" in tensors)
    parameters = dict(made.named_parameters())
    for name, value in tensors.items():
        if name not in ("alpha", "on_input"):
            assert parameters[name].shape == value.shape
            parameters[name].copy_(value)
    theirs, _ = made.get_diff_weight()
    torch.testing.assert_close(delta_of(case), theirs.reshape(case.base.shape), rtol=1e-5, atol=1e-5)


def merged_by_peft(config: object, tensors: dict[str, torch.Tensor], base: torch.Tensor) -> torch.Tensor:
    peft = pytest.importorskip("peft", reason="PEFT is the reference")
    model = nn.Sequential()
    model.add_module("proj", layer_of(base))
    wrapped = peft.get_peft_model(model, config)
    named = {f"base_model.model.proj.{name}": value for name, value in tensors.items()}
    loaded = peft.set_peft_model_state_dict(wrapped, named)
    assert not loaded.unexpected_keys
    return wrapped.merge_and_unload().proj.weight.data


def test_peft_merges_its_dora_to_the_weight_we_read() -> None:
    peft = pytest.importorskip("peft", reason="PEFT is the reference")
    base = base_of(SHAPE)
    up, down = noise(24, 4, seed=1), noise(4, 16, seed=2)
    magnitudes = (base + 0.5 * up @ down).norm(dim=1) * (1 + noise(24, size=0.2))
    tensors = {"lora_B.weight": up, "lora_A.weight": down, "lora_magnitude_vector": magnitudes}
    config = peft.LoraConfig(r=4, lora_alpha=2, target_modules=["proj"], use_dora=True)
    theirs = merged_by_peft(config, tensors, base)
    # PEFT keeps alpha in its configuration, not in the file.
    stored = tensors_of({NAME: Factors(up, down, 2.0)}) | {f"{NAME}.lora_magnitude_vector": magnitudes}
    ours = base + delta_of(Case("", stored, base, base.numpy()))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_shared", [False, True], ids=["own blocks", "one shared block"])
def test_peft_merges_its_oft_to_the_weight_we_read(is_shared: bool) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is the reference")
    title = "oft of peft, shared" if is_shared else "oft of peft"
    case = next(case for case in CASES if case.title == title)
    config = peft.OFTConfig(r=0, oft_block_size=4, target_modules=["proj"], block_share=is_shared)
    tensors = {name.removeprefix(f"{NAME}."): value for name, value in case.tensors.items()}
    theirs = merged_by_peft(config, tensors, case.base)
    torch.testing.assert_close(case.base + delta_of(case), theirs, rtol=1e-5, atol=1e-5)
