"""Consensus against numbers worked out by hand, and against its three stages on dense float64 arrays."""

from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.merging.methods import consensus
from lora_alloy_testing import reference
from lora_alloy_testing.whole_or_tiled import merged


def related(
    count: int, spread: float, shape: tuple[int, int] = (14, 11), rank: int = 3, seed: int = 0
) -> Tensor:
    """`(n, o, c)` about a common delta of low rank."""
    chance = np.random.default_rng(seed)

    def low() -> np.ndarray:
        return chance.normal(size=(shape[0], rank)) @ chance.normal(size=(rank, shape[1]))

    common = low()
    return torch.from_numpy(np.stack([common + spread * low() for _ in range(count)])).float()


def test_stage_one_lets_the_larger_change_decide():
    # (1 + 27) / (1 + 9); 3³ / 3²; (1·8 - 0.5·1) / (1·4 + 0.5·1); nobody.
    given = torch.tensor([[[1.0, 0.0, 2.0, 0.0]], [[3.0, 3.0, 1.0, 0.0]]])
    assert consensus.merge(given, torch.ones(2))[0, :2].tolist() == pytest.approx([2.8, 3.0])
    found = consensus.merge(given, torch.tensor([1.0, -0.5]))
    assert found[0, 2:].tolist() == pytest.approx([7.5 / 4.5, 0.0])


@pytest.mark.parametrize("size", [1e-36, 1e-20, 1.0, 1e30])
def test_stage_one_works_at_any_size_of_number(size):
    given = torch.tensor([[[1.0]], [[3.0]]]) * size
    assert float(consensus.merge(given, torch.ones(2))) == pytest.approx(2.8 * size, rel=1e-6)


def test_stage_two_brings_the_norm_to_the_mean_of_the_inputs():
    # A row of norm 5; the inputs' norms 4 and 10 at strengths 2 and 1 have the mean 6.
    found = consensus.finish(
        torch.tensor([[3.0, 4.0]]), torch.tensor([2.0, -1.0]), norms=torch.tensor([4.0, 10.0]).double()
    )
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, torch.tensor([[3.6, 4.8]]))


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        ([1.0, 1.0, 1.0, 1.0], 4),  # H = ln 4
        ([1.0, 0.0, 0.0, 0.0], 1),  # H = 0
        ([2.0, 1.0, 1.0, 0.0], 3),  # shares ½ ¼ ¼: exp(H) = 2^1.5 = 2.83
        ([8.0, 1.0, 1.0, 0.0], 2),  # shares .8 .1 .1: exp(0.639) = 1.89
        ([97.0, 1.0, 1.0, 1.0], 1),  # exp(0.168) = 1.18
    ],
)
def test_stage_three_keeps_the_effective_rank_and_no_norm_for_what_it_cuts(values, rank):
    norm = sqrt(sum(value**2 for value in values))
    rows, columns = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 4)))[0], np.eye(4, 6)
    given = torch.from_numpy((rows * values) @ columns).float()
    made = consensus.finish(given, torch.ones(1), norms=torch.tensor([norm]).double())
    assert isinstance(made, tuple)
    up, down = made
    assert (up.shape, down.shape) == ((9, rank), (rank, 6))
    found = torch.linalg.svdvals(up @ down)[:rank]
    np.testing.assert_allclose(found, sorted(values, reverse=True)[:rank], rtol=1e-5)


@pytest.mark.parametrize("spread", [0.05, 0.7, 5.0])
@pytest.mark.parametrize("shape", [(14, 11), (9, 30), (30, 9), (2, 5), (8, 3 * 9)], ids=str)
@pytest.mark.parametrize("strengths", [[1.0, 1.0], [0.75, -0.5, 1.25]])
def test_consensus_equals_its_stages_on_dense_arrays(spread, shape, strengths):
    given = related(len(strengths), spread, shape)
    expected = reference.consensus(list(given.double().numpy()), strengths)
    found = merged(consensus, given, torch.tensor(strengths))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=2e-5 * abs(expected).max())


def test_a_spectrum_has_no_cap():
    """A matrix with 300 directions alike keeps them; the seed's successors stop at 128."""
    basis = torch.linalg.qr(torch.randn(320, 300, generator=torch.Generator().manual_seed(0)))[0]
    made = consensus.finish(basis @ basis.T, torch.ones(1), norms=torch.tensor([sqrt(300.0)]).double())
    assert made[0].shape == (320, 300)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_left_of_a_cancellation_is_not_made_loud(seed):
    first, noise = related(2, 1.0, seed=seed)
    given = torch.stack([first, -first + 1e-3 * noise])
    found = merged(consensus, given, torch.ones(2))
    assert float(found.norm()) < 0.01 * float(first.norm())


def test_loras_that_cancel_leave_nothing():
    given = related(1, 0.0).repeat(2, 1, 1) * torch.tensor([1.0, -1.0])[:, None, None]
    assert not merged(consensus, given, torch.ones(2)).any()


def test_identical_loras_come_out_as_one_of_them_cut_to_its_effective_rank():
    given = related(1, 0.0).repeat(3, 1, 1)
    expected = merged(consensus, given[:1], torch.ones(1))
    torch.testing.assert_close(merged(consensus, given, torch.tensor([1.0, 0.5, 0.25])), expected)
