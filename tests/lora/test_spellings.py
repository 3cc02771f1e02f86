"""Every spelling of a LoRA's factors, and where the scale comes from."""

import numpy as np
import pytest
import torch

from lora_alloy.api import load, merge
from lora_alloy.core.errors import FileError
from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy_testing.builders import (
    SPELLINGS,
    TOY,
    Factors,
    dense,
    difference,
    file_of,
    noise,
    tensors_of,
    toy_lora,
    write_lora,
)

NAME = next(iter(TOY))


def delta_of(file: LoraFile, name: str = NAME) -> np.ndarray:
    return file.load(file.modules[name]).dense().double().numpy()


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("alpha", [None, 2.0])
@pytest.mark.parametrize("shape", [(24, 16), (12, 8, 3, 3), (12, 8, 1, 1)], ids=str)
def test_every_spelling_gives_the_same_delta_and_leaves_no_tensor_over(spelling, alpha, shape, tmp_path):
    factors = noise(shape, 4, seed=1, alpha=alpha)
    file = load(write_lora(tmp_path / "ink.safetensors", {NAME: factors}, spelling))
    assert list(file.modules) == [NAME]
    assert {account.state for account in file.accounts} == {"used"}
    assert difference(delta_of(file), factors.delta) < 1e-6
    assert file.load(file.modules[NAME]).shape == shape


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_merges_with_every_other(spelling, tmp_path):
    lora = toy_lora(1)
    first = write_lora(tmp_path / "first.safetensors", lora)
    second = write_lora(tmp_path / "second.safetensors", toy_lora(2), spelling)
    result = merge([first, second])
    assert len(result.plan.targets) == len(TOY)
    assert {target.entries for target in result.plan.targets} <= {(0, 1), (1, 0)}


@pytest.mark.parametrize("adapter", ["default", "style_1", "0"])
def test_peft_may_put_any_adapters_name_in_between(adapter):
    factors = noise((24, 16), 4, seed=1)
    for end in (".weight", ""):
        file = lora_in_memory(
            "ink",
            {f"{NAME}.lora_A.{adapter}{end}": factors.down, f"{NAME}.lora_B.{adapter}{end}": factors.up},
            {},
        )
        assert difference(delta_of(file), factors.delta) < 1e-6


def test_a_tucker_mid_is_folded_in():
    factors = noise((12, 8, 3, 3), 4, seed=1, alpha=2.0, has_mid=True, size=0.5)
    file = file_of({NAME: factors})
    assert file.modules[NAME].shape == (12, 8, 3, 3)
    assert difference(delta_of(file), factors.delta) < 1e-6


def test_worked_by_hand():
    up, down = torch.tensor([[1.0, 0.0], [2.0, 1.0]]), torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]])
    file = file_of({NAME: Factors(up, down, 1.0)})  # alpha 1 of rank 2: half
    assert delta_of(file).tolist() == [[0.5, 1.0, 1.5], [1.0, 2.5, 3.0]]


def test_a_mid_worked_by_hand():
    """One kernel of two taps, rank 1: each entry is up · mid · down."""
    factors = Factors(
        torch.tensor([[[[2.0]]]]), torch.tensor([[[[3.0]], [[5.0]]]]), None, torch.tensor([[[[1.0, 10.0]]]])
    )
    assert delta_of(file_of({NAME: factors})).tolist() == [[[[6.0, 60.0]], [[10.0, 100.0]]]]


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2],
)
def test_factors_of_every_floating_dtype_are_read_and_merged(dtype, tmp_path):
    plain = toy_lora(1, size=1.0)
    lora = {name: Factors(one.up.to(dtype), one.down.to(dtype), 2.0) for name, one in plain.items()}
    path = write_lora(tmp_path / "ink.safetensors", lora)
    other = write_lora(tmp_path / "other.safetensors", toy_lora(2, size=1.0))
    expected = {name: Factors(one.up.float(), one.down.float(), 2.0).delta for name, one in lora.items()}
    found = dense(merge([path]))
    for name, delta in expected.items():
        assert difference(found[TOY[name][0]], delta) < (1e-6 if dtype.itemsize >= 4 else 1e-3)
    merge([path, other])


class TestTheScale:
    """`spec` of the formats: alpha over rank, the rank that of the tensor; 1 without alpha."""

    @pytest.mark.parametrize("rank", [1, 4, 12])
    @pytest.mark.parametrize("alpha", [1.0, 4.0, 32.0, 0.5, -2.0])
    def test_is_alpha_over_the_rank_of_the_tensor(self, rank, alpha):
        file = file_of({NAME: noise((24, 16), rank, seed=1, alpha=alpha)})
        assert file.load(file.modules[NAME]).scale == alpha / rank

    def test_is_one_without_alpha(self):
        file = file_of({NAME: noise((24, 16), 4, seed=1)})
        assert file.load(file.modules[NAME]).scale == 1.0

    def test_is_zero_with_an_alpha_of_zero(self, tmp_path):
        """It has no effect where it is rendered, so it has none in a merge."""
        path = write_lora(tmp_path / "ink.safetensors", toy_lora(1, alpha=0.0))
        assert all(not delta.any() for delta in dense(merge([path])).values())

    @pytest.mark.parametrize(
        "alpha",
        [
            torch.tensor(2.0),
            torch.tensor([2.0]),
            torch.tensor([[2.0]]),
            torch.tensor(2.0, dtype=torch.float16),
            torch.tensor([2.0], dtype=torch.bfloat16),
            torch.tensor(2),
            torch.tensor([2], dtype=torch.int32),
            torch.tensor(2.0, dtype=torch.float64),
            torch.tensor(2.0, dtype=torch.float8_e4m3fn),
        ],
        ids=lambda alpha: f"{alpha.dtype} {tuple(alpha.shape)}",
    )
    def test_takes_an_alpha_of_any_dtype_and_of_one_element(self, alpha):
        tensors = tensors_of({NAME: noise((24, 16), 4, seed=1)}) | {f"{NAME}.alpha": alpha}
        file = lora_in_memory("ink", tensors, {})
        assert file.load(file.modules[NAME]).scale == 0.5

    @pytest.mark.parametrize("shape", [(2,), (1, 2), (4,), (0,)])
    def test_of_more_than_one_number_is_damage(self, shape):
        tensors = tensors_of({NAME: noise((24, 16), 4, seed=1)}) | {f"{NAME}.alpha": torch.ones(shape)}
        with pytest.raises(FileError, match="alpha of shape"):
            lora_in_memory("ink", tensors, {})

    @pytest.mark.parametrize("alpha", [float("nan"), float("inf"), float("-inf")])
    def test_that_is_not_finite_is_damage(self, alpha, tmp_path):
        path = write_lora(tmp_path / "ink.safetensors", {NAME: noise((24, 16), 4, seed=1, alpha=alpha)})
        with pytest.raises(FileError, match=rf"`{NAME}.alpha` of `.*ink.safetensors` is "):
            merge([path])

    def test_does_not_follow_the_header(self, tmp_path):
        """`ss_network_alpha` tells of a training run, not of the tensors."""
        told = {"ss_network_alpha": "1", "ss_network_dim": "4"}
        path = write_lora(tmp_path / "ink.safetensors", {NAME: noise((24, 16), 4, seed=1)}, metadata=told)
        file = load(path)
        assert file.load(file.modules[NAME]).scale == 1.0

    def test_may_differ_from_module_to_module(self, tmp_path):
        lora = {
            name: noise(TOY[name][1], place + 1, seed=place, alpha=float(place + 3) if place else None)
            for place, name in enumerate(TOY)
        }
        found = dense(merge([write_lora(tmp_path / "ink.safetensors", lora)]))
        for name, factors in lora.items():
            assert difference(found[TOY[name][0]], factors.delta) < 1e-6
