"""STAR and TAME by hand and against a decomposition of the whole delta."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.enhance import star, tame
from lora_alloy_testing import dense_formulas


def low_rank(rank: int = 6, shape: tuple[int, int] = (20, 15), seed: int = 0) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(shape[0], rank, generator=chance), torch.randn(rank, shape[1], generator=chance)


def with_values(values: list[float]) -> tuple[Tensor, Tensor]:
    """Factors with these singular values."""
    chance = np.random.default_rng(0)
    left = np.linalg.qr(chance.normal(size=(9, len(values))))[0]
    right = np.linalg.qr(chance.normal(size=(8, len(values))))[0]
    return torch.from_numpy(left * values).float(), torch.from_numpy(right.T.copy()).float()


@pytest.mark.parametrize(
    ("eta", "expected"),
    [
        (100.0, [4.0, 3.0, 2.0, 1.0]),
        (90.0, [40 / 9, 30 / 9, 20 / 9]),  # 9 of 10 are just 90 per cent
        (91.0, [4.0, 3.0, 2.0, 1.0]),
        (70.0, [40 / 7, 30 / 7]),
        (10.0, [10.0]),
    ],
)
def test_star_keeps_the_fewest_that_hold_the_share_and_restores_their_sum(eta, expected):
    given = with_values([4.0, 3.0, 2.0, 1.0])
    up, down = star.cleaned(*given, eta=eta)
    assert up.shape[1] == len(expected)
    np.testing.assert_allclose(torch.linalg.svdvals(up @ down)[: len(expected)], expected, rtol=1e-5)
    made = star.cleaned_values(given[0] @ given[1], eta=eta)
    made = made if isinstance(made, Tensor) else made[0] @ made[1]
    torch.testing.assert_close(made, up @ down, rtol=1e-4, atol=1e-5)


def test_star_can_restore_the_frobenius_norm_instead():
    given = with_values([4.0, 3.0, 2.0, 1.0])
    up, down = star.cleaned(*given, eta=70.0, restored="frobenius")
    gain = (30 / 25) ** 0.5
    np.testing.assert_allclose(torch.linalg.svdvals(up @ down)[:2], [4 * gain, 3 * gain], rtol=1e-5)
    values = star.cleaned_values(given[0] @ given[1], eta=70.0, restored="frobenius")
    assert isinstance(values, tuple)
    torch.testing.assert_close(values[0] @ values[1], up @ down, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("eta", [20.0, 60.0, 95.0])
@pytest.mark.parametrize("shape", [(20, 15), (15, 20), (4, 50), (1, 9)], ids=str)
def test_star_equals_its_formula_on_the_whole_delta(eta, shape):
    up, down = low_rank(shape=shape)
    expected = dense_formulas.star((up.double() @ down.double()).numpy(), eta)
    made = star.cleaned(up, down, eta=eta)
    np.testing.assert_allclose(made[0] @ made[1], expected, rtol=0, atol=1e-5 * abs(expected).max())
    values = star.cleaned_values(up @ down, eta=eta)
    assert isinstance(values, tuple)
    np.testing.assert_allclose(values[0] @ values[1], expected, rtol=0, atol=1e-5 * abs(expected).max())


def test_star_leaves_zeros_and_its_inputs_alone():
    up, down = star.cleaned(torch.zeros(5, 2), torch.zeros(2, 4), eta=50.0)
    assert not (up @ down).any()
    zeros = star.cleaned_values(torch.zeros(5, 4), eta=50.0)
    assert isinstance(zeros, Tensor)
    assert not zeros.any()
    up, down = low_rank()
    star.cleaned(up, down, eta=50.0)
    assert up.equal(low_rank()[0])
    assert down.equal(low_rank()[1])


@pytest.mark.parametrize(
    ("norm", "layers", "threshold", "expected"),
    [
        (6.0, 1.0, 0.3, 0.5),  # 60 per cent of the base, down to 30
        (6.0, 0.5, 0.3, 0.5**0.5),
        (6.0, 0.0, 0.3, 1.0),
        (3.0, 1.0, 0.3, 1.0),
        (0.0, 1.0, 0.3, 1.0),
        (20.0, 1.0, 2.0, 1.0),
    ],
)
def test_tame_turns_down_what_is_beyond_the_threshold(norm, layers, threshold, expected):
    assert tame.factor(norm, 10.0, layers=layers, threshold=threshold) == pytest.approx(expected)


def test_tame_leaves_nothing_of_a_lora_on_a_weight_of_zeros():
    assert tame.factor(1.0, 0.0, layers=1.0, threshold=0.3) == pytest.approx(3e-9)
