"""The exact spectrum against a decomposition in double precision."""

import numpy as np
import pytest
import torch

from lora_alloy.core.spectrum import effective_rank, leading, spectrum


def matrix(shape: tuple[int, int], rank: int, seed: int = 0) -> torch.Tensor:
    chance = np.random.default_rng(seed)
    made = chance.normal(size=(shape[0], rank)) @ chance.normal(size=(rank, shape[1]))
    return torch.from_numpy(made).float()


@pytest.mark.parametrize(
    "shape", [(30, 50), (50, 30), (600, 40), (40, 2500), (600, 700), (1, 9), (9, 1)], ids=str
)
@pytest.mark.parametrize("rank", [1, 5, 600])
def test_values_are_those_of_a_full_decomposition(shape, rank):
    given = matrix(shape, rank)
    expected = np.linalg.svd(given.double().numpy(), compute_uv=False)
    values, vectors = spectrum(given)
    assert values.shape == (min(shape),)
    assert vectors.shape == (min(shape), min(shape))
    np.testing.assert_allclose(values, expected, rtol=0, atol=2e-7 * expected[0])


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (600, 40)], ids=str)
def test_leading_factors_are_the_best_of_their_rank(shape):
    given = matrix(shape, 600)
    left, values, right = np.linalg.svd(given.double().numpy(), full_matrices=False)
    for count in (1, 4, min(shape)):
        up, down = leading(given, *spectrum(given), count)
        expected = (left[:, :count] * values[:count]) @ right[:count]
        assert up.shape == (shape[0], count)
        np.testing.assert_allclose((up @ down).numpy(), expected, rtol=0, atol=1e-5 * abs(expected).max())


def test_what_is_rounding_counts_as_nothing():
    values, _ = spectrum(matrix((40, 50), 3))
    assert int((values > 0).sum()) == 3


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12])
def test_the_size_of_the_numbers_does_not_matter(size):
    values, _ = spectrum(matrix((20, 30), 5) * size)
    torch.testing.assert_close(values / size, spectrum(matrix((20, 30), 5))[0], rtol=1e-5, atol=1e-6)


def test_zeros_have_no_rank():
    values, _ = spectrum(torch.zeros(4, 6))
    assert not values.any()
    assert effective_rank(values) == 0.0


def test_effective_rank_of_shares_a_half_and_two_quarters_is_two_to_the_three_halves():
    assert effective_rank(torch.tensor([2.0, 1.0, 1.0, 0.0]).double()) == pytest.approx(2**1.5, rel=1e-12)
