"""Formats whose effect depends on the base weight, each against its formula in float64 NumPy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.core.errors import FileError, StackError
from lora_alloy.lora.entries import Model
from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.lora.target import Route, Target
from lora_alloy_testing.base_formats import CASES, NAME, Case, noise
from lora_alloy_testing.builders import account_for_all, tensors_of, toy_lora

WEIGHT = "diffusion_model.block.proj"


def opened(case: Case) -> LoraFile:
    return lora_in_memory("ink", case.tensors, {})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_delta_is_the_formula_of_its_format(case: Case) -> None:
    file = opened(case)
    account_for_all(file, case.tensors)
    module = file.modules[case.module]
    assert module.base_reason
    found = file.load(module, case.base).flat().double().numpy()
    expected = case.expected.reshape(found.shape)
    assert np.linalg.norm(found - expected) <= 2e-6 * np.linalg.norm(expected)
    assert np.linalg.norm(expected) > 0.01 * float(case.base.norm())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_without_a_base_it_is_refused_by_name(case: Case) -> None:
    with pytest.raises(
        StackError, match=rf"`{case.module}` .* depends on the base weight; give it with `--base`"
    ):
        build_stack([Entry(opened(case))])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_with_a_base_the_stack_brings_its_delta(case: Case) -> None:
    model = Model(
        {case.module: Route(Target(WEIGHT))}, {WEIGHT: tuple(case.base.shape)}, True, lambda _: case.base
    )
    stack = build_stack([Entry(opened(case))], model)
    (delta,) = stack.load(stack.groups[0])
    assert stack.groups[0].shape == tuple(case.base.shape)
    expected = case.expected.reshape(delta.flat().shape)
    np.testing.assert_allclose(delta.flat().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if "on lora" not in str(case)], ids=str)
def test_a_base_of_another_size_is_refused_with_both(case: Case) -> None:
    shape = (case.base.shape[0] * 3, case.base.shape[1] * 5 + 1, *case.base.shape[2:])
    model = Model({case.module: Route(Target(WEIGHT))}, {WEIGHT: shape}, True, lambda _: torch.zeros(shape))
    with pytest.raises((StackError, FileError), match=rf"{shape[0]}|{shape[1]}"):
        stack = build_stack([Entry(opened(case))], model)
        stack.load(stack.groups[0])


def test_a_base_weight_that_cannot_be_read_is_named() -> None:
    case = CASES[0]
    model = Model(
        {case.module: Route(Target(WEIGHT))}, {WEIGHT: tuple(case.base.shape)}, True, lambda _: None
    )
    stack = build_stack([Entry(opened(case))], model)
    with pytest.raises(StackError, match=rf"the base weight {WEIGHT} cannot be read"):
        stack.load(stack.groups[0])


DAMAGE: dict[str, tuple[dict[str, Tensor], str]] = {
    "magnitudes of another size": (
        tensors_of({NAME: toy_lora(1)[list(toy_lora(1))[0]]}) | {f"{NAME}.dora_scale": torch.ones(7, 1)},
        "DoRA magnitudes of shape",
    ),
    "magnitudes twice": (
        tensors_of({NAME: toy_lora(1)[list(toy_lora(1))[0]]})
        | {f"{NAME}.dora_scale": torch.ones(24, 1), f"{NAME}.magnitude": torch.ones(24)},
        "twice",
    ),
    "GLoRA in part": ({f"{NAME}.a1.weight": noise(16, 4)}, "lacks the GLoRA factors a2, b1, b2"),
    "GLoRA of two ranks": (
        {f"{NAME}.{role}.weight": noise(*shape) for role, shape in
         {"a1": (16, 4), "a2": (4, 16), "b1": (24, 5), "b2": (5, 16)}.items()},
        "do not multiply",
    ),
    "blocks that are not square": ({f"{NAME}.oft_blocks": noise(3, 8, 4)}, "not square blocks"),
    "a butterfly that does not close": ({f"{NAME}.oft_blocks": noise(4, 2, 4, 4)}, "does not close"),
    "a listed block is missing": ({f"{NAME}.oft_blocks.1": noise(2, 4, 4)}, "lacks some"),
    "no triangle": ({f"{NAME}.oft_R.weight": noise(4, 7)}, "not rows of triangles"),
    "a switch without its weight": ({f"{NAME}.on_input": torch.tensor(1)}, "without its weight"),
}  # fmt: skip


@pytest.mark.parametrize(("tensors", "sentence"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_refused_with_a_sentence(tensors: dict[str, Tensor], sentence: str) -> None:
    with pytest.raises(FileError, match=sentence):
        lora_in_memory("ink", tensors, {})


def test_what_comfyui_does_not_apply_is_skipped_with_the_reason() -> None:
    tensors = {f"{NAME}.oft_blocks": noise(4, 6, 6), f"{NAME}.rescale": torch.ones(24, 1)}
    file = lora_in_memory("ink", tensors, {})
    account_for_all(file, tensors)
    (skipped,) = (account for account in file.accounts if account.state == "skipped")
    assert skipped.tensor == f"{NAME}.rescale" and "does not apply" in skipped.reason


def test_a_weight_alone_is_not_taken_for_ia3() -> None:
    tensors = tensors_of(toy_lora(1)) | {"some.norm.weight": torch.ones(4)}
    file = lora_in_memory("ink", tensors, {})
    assert [account.tensor for account in file.accounts if account.state == "unknown"] == ["some.norm.weight"]
