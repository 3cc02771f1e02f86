"""What depends on a base weight, and a base weight that is not the one it was trained on: a sentence, always."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.api import merge
from lora_alloy.core.errors import AlloyError, FileError, StackError
from lora_alloy.lora.entries import Entry, Model
from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.stack import build_stack
from lora_alloy.lora.target import Route, Target
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.base_formats import CASES, NAME, Case, noise, stretched, wide
from lora_alloy_testing.exact_modules import loha, lokr

PLACE = Target("diffusion_model.block.proj")
PLAIN = Recipe(method="weighted_sum", auto_strength=False)


def model(base: Tensor | None, shape: tuple[int, ...] = ()) -> Model:
    sizes = tuple(base.shape) if base is not None else shape
    return Model({NAME: Route(PLACE)}, {PLACE.weight: sizes}, True, lambda weight: base)


def add(tensors: dict[str, Tensor], base: Tensor) -> np.ndarray:
    """What a file of one module adds to its base weight."""
    (patch,) = merge([Entry(lora_in_memory("ink", tensors, {}))], PLAIN, model=model(base))
    return patch.delta.dense().double().numpy()


BASES = {
    "one axis": noise(24),
    "no axis": torch.tensor(1.0),
    "no rows": torch.zeros(0, 16),
    "no columns": torch.zeros(24, 0),
    "three axes": noise(24, 1, 16),
    "a row more": noise(25, 16),
    "a column more": noise(24, 17),
    "five axes": noise(24, 4, 1, 2, 2),
    "values that are not finite": torch.full((24, 16), torch.nan),
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_base_weight_of_any_shape_is_taken_or_refused_with_a_sentence(case: Case, base: Tensor):
    tensors = {f"{NAME}{name.removeprefix(case.module)}": value for name, value in case.tensors.items()}
    try:
        patches = list(merge([Entry(lora_in_memory("ink", tensors, {}))], PLAIN, model=model(base)))
    except AlloyError as problem:
        assert str(problem).endswith((".", ")"))
        return
    assert all(tuple(patch.shape) == tuple(base.shape) for patch in patches)


def test_factors_on_outputs_leave_a_weight_of_one_axis_alone():
    tensors = {f"{NAME}.weight": noise(24), f"{NAME}.on_input": torch.tensor(0)}
    file = lora_in_memory("ink", tensors, {})
    with pytest.raises(StackError, match=r"has \(24,\), which is no matrix"):
        build_stack([Entry(file)], model(noise(24)))


def test_glora_on_other_inputs_is_refused_with_both():
    square = next(case for case in CASES if case.title == "glora, square")
    with pytest.raises(FileError, match="maps 16 inputs, and the base weight has 1"):
        add(square.tensors, noise(16, 1, 16))


def test_glora_with_a_kernel_where_none_can_be_is_damage():
    tensors = dict(next(case for case in CASES if case.title == "glora, square").tensors)
    tensors[f"{NAME}.a1.weight"] = noise(16, 4, 3)
    with pytest.raises(FileError, match="do not multiply"):
        lora_in_memory("ink", tensors, {})


def test_magnitudes_for_outputs_that_lie_along_the_inputs_are_damage():
    """ComfyUI would hold 24 numbers against 16 columns, fail, and leave the weight as it was."""
    tensors = dict(next(case for case in CASES if case.title == "dora by output on lora").tensors)
    tensors[f"{NAME}.dora_scale"] = tensors[f"{NAME}.dora_scale"].reshape(1, 24)
    with pytest.raises(FileError, match=r"DoRA magnitudes of shape \(1, 24\)"):
        lora_in_memory("ink", tensors, {})


FLAT = {"LoHa": loha((12, 8, 3, 3), (2, 2), alpha=2.0), "LoKr": lokr((2, 2), (6, 4, 3, 3), ranks=(0, 1))}


@pytest.mark.parametrize("made", FLAT.values(), ids=FLAT)
def test_magnitudes_by_input_of_a_flat_convolution_are_one_a_channel(made):
    """LyCORIS stores the factors flat, `(12, 72)`, and the magnitudes as the convolution has them, `(1, 8, 1, 1)`."""
    base, magnitudes = noise(12, 8, 3, 3, seed=3), noise(1, 8, 1, 1, seed=4).abs() + 1
    tensors = {f"{NAME}.{end}": value for end, value in made.tensors.items()}
    found = add(tensors | {f"{NAME}.dora_scale": magnitudes}, base)
    expected = stretched(wide(base), made.delta, wide(magnitudes), 1, of_base=False)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_magnitudes_for_another_number_of_channels_are_refused_with_both():
    tensors = {f"{NAME}.{end}": value for end, value in FLAT["LoHa"].tensors.items()}
    tensors[f"{NAME}.dora_scale"] = torch.ones(1, 9, 1, 1)
    with pytest.raises(FileError, match="magnitudes for 9 inputs, and the base weight has 8"):
        add(tensors, noise(12, 8, 3, 3))
