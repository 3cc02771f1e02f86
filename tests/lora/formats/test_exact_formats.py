"""Every format that needs no base weight gives the delta of its formula, in the form that is promised."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lora_alloy.api import merge
from lora_alloy.core.errors import FileError
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy.lora.full import Dense, Kron
from lora_alloy.lora.stack import Entry
from lora_alloy.lora.target import Part
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import account_for_all, difference
from lora_alloy_testing.exact_modules import CASES, Made, loha, lokr, lora

PLAIN = Recipe(method="weighted_sum", auto_strength=False)
NAME = "mystery.blocks.3.bar"
FORMS = {
    "loha": LowRank,
    "loha of full rank": Dense,
    "loha, a Tucker convolution": LowRank,
    "loha, a Tucker convolution of full rank": Dense,
    "lokr, both whole": Kron,
    "lokr, both whole, and an alpha": Kron,
    "lokr, w2 in factors": LowRank,
    "lokr, w2 in factors, of half rank": Kron,
    "lokr, w1 in factors": LowRank,
    "lokr, a whole convolution": Kron,
    "lokr, a Tucker convolution": LowRank,
}


def file_of(tensors: Mapping[str, Tensor], name: str = NAME) -> LoraFile:
    named = {f"{name}.{end}": value for end, value in tensors.items()}
    file = lora_in_memory("ink", named, {})
    account_for_all(file, named)
    return file


def alone(made: Made) -> LoraFile:
    return file_of(made.tensors)


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_the_delta_is_that_of_the_formula_in_float64(made):
    file = alone(made)
    delta = file.load(file.modules[NAME])
    found = delta.flat().double().numpy()
    assert difference(found, made.delta.reshape(len(made.delta), -1)) < 2e-7
    if made.bias is not None:
        bias = file.load(file.modules[f"{NAME}.bias"]).dense().numpy()
        np.testing.assert_array_equal(bias, made.bias.astype(np.float32))


@pytest.mark.parametrize(("case", "form"), FORMS.items(), ids=FORMS)
def test_a_delta_stays_in_the_smallest_exact_form(case, form):
    file = alone(CASES[case])
    assert isinstance(file.load(file.modules[NAME]), form)


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_rows_and_columns_of_a_fused_weight_are_those_of_the_matrix(made):
    file = alone(made)
    delta = file.load(file.modules[NAME])
    wide = made.delta.reshape(delta.shape)
    for axis, start, length in ((0, 3, 5), (0, 0, 4), (1, 1, 2)):
        part = delta.part(Part(axis, start, length)).dense().numpy()
        assert difference(part, np.take(wide, range(start, start + length), axis)) < 1e-6


@pytest.mark.parametrize("made", CASES.values(), ids=CASES)
def test_alone_at_strength_1_it_is_saved_and_read_back_as_itself(made, tmp_path):
    merged = merge([Entry(alone(made))], PLAIN)
    proof = merged.save(tmp_path / "out")
    assert proof.read_error == 0.0
    saved = lora_in_memory("out", load_file(tmp_path / "out.safetensors"), {})
    name = next(name for name, module in saved.modules.items() if module.parameter == "weight")
    found = saved.load(saved.modules[name]).flat().double().numpy()
    width = 1e-6 if merged.patches[0].dtype == torch.float32 else 5e-3
    assert difference(found, made.delta.reshape(len(made.delta), -1)) < width


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_lokr_with_both_matrices_whole_is_saved_bit_for_bit(dtype, tmp_path):
    made = lokr((4, 3), (6, 8), dtype=dtype, alpha=1e10)
    merge([Entry(alone(made))], PLAIN).save(tmp_path / "out")
    saved = load_file(tmp_path / "out.safetensors")
    matrices = {name.rpartition(".")[2]: value for name, value in saved.items()}
    assert set(matrices) == {"lokr_w1", "lokr_w2"}
    for role, value in matrices.items():
        assert value.dtype == dtype and torch.equal(value, made.tensors[role])


def test_a_loha_and_a_lora_add_up_in_factors_to_the_dense_sum():
    hada, plain = CASES["loha"], lora((24, 18), alpha=2.0)
    merged = merge([Entry(alone(hada), 0.5), Entry(alone(plain), -2.0)], PLAIN)
    (patch,) = merged.patches
    assert isinstance(patch.delta, LowRank) and patch.rank <= 9 + 4
    expected = 0.5 * hada.delta - 2.0 * plain.delta
    assert difference(patch.delta.dense().double().numpy(), expected) < 1e-6


@pytest.mark.parametrize("other", ["loha", "lora", "lokr, both whole"])
def test_a_lokr_and_another_add_up_to_the_dense_sum(other):
    one, two = lokr((4, 3), (6, 6), seed=3), CASES[other]
    two = lokr((3, 2), (8, 9), seed=4) if other == "lokr, both whole" else two
    (patch,) = merge([Entry(alone(one), 0.7), Entry(alone(two), 1.5)], PLAIN).patches
    assert difference(patch.delta.dense().double().numpy(), 0.7 * one.delta + 1.5 * two.delta) < 1e-6


def test_dylora_is_an_ordinary_lora_whose_leading_ranks_are_loras_themselves():
    full = lora((24, 18), alpha=4.0)
    cut = {"lora_B.weight": full.tensors["lora_B.weight"][:, :2].contiguous()}
    cut |= {"lora_A.weight": full.tensors["lora_A.weight"][:2], "alpha": torch.tensor(2.0)}
    file, part = alone(full), file_of(cut)
    assert difference(file.load(file.modules[NAME]).dense().double().numpy(), full.delta) < 1e-6
    expected = cut["lora_B.weight"].double() @ cut["lora_A.weight"].double()
    assert difference(part.load(part.modules[NAME]).dense().double().numpy(), expected.numpy()) < 1e-6


def changed(made: Made, **tensors: Tensor | None) -> dict[str, Tensor]:
    """The module with tensors replaced, or taken out where None is given."""
    kept = {**made.tensors, **tensors}
    return {end: value for end, value in kept.items() if value is not None}


HADA, KRON = CASES["loha"], CASES["lokr, w2 in factors"]
DAMAGE = {
    "a LoHa of three factors": (changed(HADA, hada_w2_b=None), "a LoHa, but no `hada_w2_b`"),
    "one core of two": (changed(HADA, hada_t1=torch.ones(3, 3, 3, 3)), "a LoHa, but no `hada_t2`"),
    "a LoHa of two sizes": (changed(HADA, hada_w2_a=torch.ones(20, 3)), "do not multiply to one shape"),
    "a LoHa that does not multiply": (changed(HADA, hada_w1_b=torch.ones(4, 18)), "do not multiply to one"),
    "an empty LoHa": (changed(HADA, hada_w1_a=torch.ones(24, 0)), "do not multiply to one shape"),
    "w1 alone": (changed(KRON, lokr_w2_a=None, lokr_w2_b=None), "neither `lokr_w2` nor `lokr_w2_a`"),
    "half of w2": (changed(KRON, lokr_w2_b=None), "a LoKr, but no `lokr_w2_b`"),
    "factors of two ranks": (changed(KRON, lokr_w2_b=torch.ones(5, 8)), "make up no Kronecker product"),
    "a vector": (changed(KRON, lokr_w1=torch.ones(6)), "make up no Kronecker product"),
    "a kernel in w1": (changed(KRON, lokr_w1=torch.ones(2, 3, 3, 3)), "make up no Kronecker product"),
    "two alphas": (changed(HADA, alpha=torch.ones(2)), "an alpha of shape"),
    "two scalars": (changed(KRON, scalar=torch.ones(2)), "a scalar of shape"),
}


@pytest.mark.parametrize(("tensors", "sentence"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_factors_are_refused_with_the_module_and_what_is_wrong(tensors, sentence):
    with pytest.raises(FileError, match=sentence) as problem:
        file_of(tensors)
    assert f"`{NAME}`" in str(problem.value)


@pytest.mark.parametrize("made", [HADA, KRON], ids=["loha", "lokr"])
def test_integers_in_place_of_factors_are_damage(made):
    tensors = {end: value.to(torch.int8) if value.dim() else value for end, value in made.tensors.items()}
    file = file_of(tensors)
    with pytest.raises(FileError, match="not floating-point"):
        file.load(file.modules[NAME])


@pytest.mark.parametrize("made", [HADA, KRON], ids=["loha", "lokr"])
def test_an_alpha_that_is_no_number_is_damage(made):
    file = file_of(changed(made, alpha=torch.tensor(float("nan"))))
    with pytest.raises(FileError, match=r"alpha.* is nan"):
        file.load(file.modules[NAME])


def test_what_a_lokr_has_no_use_for_is_skipped_with_its_reason():
    made = CASES["lokr, both whole, and an alpha"]
    file = file_of(changed(made, lokr_t1=torch.ones(2, 2)))
    reasons = {one.tensor.rpartition(".")[2]: one.reason for one in file.accounts if one.state == "skipped"}
    assert set(reasons) == {"alpha", "lokr_t1"}
    assert "both matrices" in reasons["alpha"] and "no loader reads" in reasons["lokr_t1"]


def test_of_two_formats_in_one_module_the_one_counts_that_comfyui_takes():
    both = {**HADA.tensors, **lora((24, 18)).tensors}
    file = file_of(both)
    assert file.modules[NAME].format == "LoHa"
    assert [one.state for one in file.accounts].count("skipped") == 2


def test_names_with_pefts_adapter_in_them_are_read():
    for made in (HADA, KRON):
        tensors = {end + ".default" * ("_w" in end): value for end, value in made.tensors.items()}
        file = file_of(tensors)
        assert difference(file.load(file.modules[NAME]).flat().double().numpy(), made.delta) < 1e-6


def test_a_tucker_loha_of_a_three_dimensional_kernel_is_read():
    made = loha((8, 6, 2, 3, 3), (2, 2), is_tucker=True)
    file = alone(made)
    assert difference(file.load(file.modules[NAME]).dense().double().numpy(), made.delta) < 1e-6


def test_the_scalar_of_an_old_glora_is_applied_once():
    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))

    factors = {"a1": (18, 3), "a2": (3, 18), "b1": (24, 3), "b2": (3, 18)}
    tensors = {f"{role}.weight": draw(*sizes) for role, sizes in factors.items()}
    plain, old = file_of(tensors), file_of({**tensors, "scalar": torch.tensor(0.25)})
    one, other = (file.load(file.modules[NAME], draw(24, 18)).dense() for file in (plain, old))
    torch.testing.assert_close(other, one * 0.25)
