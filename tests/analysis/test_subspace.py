"""Spectra, effective ranks and subspace overlaps against a dense float64 SVD."""

import numpy as np
import pytest
import torch

from lora_alloy.analysis.similarity import gram_matrix
from lora_alloy.analysis.subspace import LEADING, overlap, spectrum
from lora_alloy.lora.factors import LowRank
from lora_alloy_testing.builders import Factors, file_of, noise

NAME = "lora_unet_blocks_0_attn_q"

KINDS = {
    "linear": noise((40, 30), 5, seed=1),
    "with alpha": noise((40, 30), 5, seed=2, alpha=-1.0),
    "convolution": noise((20, 8, 3, 3), 6, seed=3),
    "Tucker": noise((20, 8, 3, 3), 6, seed=4, has_mid=True, size=0.5),
    "rank above both sizes": noise((7, 5), 12, seed=5),
    "half precision": noise((40, 30), 5, seed=6, dtype=torch.float16),
    "rank 1": noise((40, 30), 1, seed=7),
}


def loaded(factors: Factors) -> LowRank:
    file = file_of({NAME: factors})
    return file.load(file.modules[NAME])


def flat(factors: Factors) -> np.ndarray:
    return factors.delta.reshape(factors.delta.shape[0], -1)


def dense_effective_rank(values: np.ndarray) -> float:
    """exp(−Σ p ln p) with p the share of each singular value: Roy and Vetterli."""
    shares = values[values > 1e-12 * values.max()] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


@pytest.mark.parametrize("factors", KINDS.values(), ids=KINDS)
def test_the_spectrum_is_that_of_the_dense_delta(factors):
    found = spectrum(loaded(factors))
    exact = np.linalg.svd(flat(factors), compute_uv=False)
    count = min(len(found.values), len(exact))
    np.testing.assert_allclose(found.values[:count], exact[:count], rtol=0, atol=2e-6 * exact[0])
    assert (found.values[count:] <= 2e-6 * exact[0]).all()
    assert exact[count:].sum() <= 1e-6 * exact[0]


@pytest.mark.parametrize("factors", KINDS.values(), ids=KINDS)
def test_the_leading_vectors_are_those_of_the_dense_delta(factors):
    found = spectrum(loaded(factors))
    keep = min(LEADING, factors.down.shape[0], *flat(factors).shape)
    left, values, right = np.linalg.svd(flat(factors))
    sharp = values[:keep] - np.append(values, 0)[1 : keep + 1] > 1e-3 * values[0]
    for place in np.flatnonzero(
        sharp & (np.diff(np.append(values[0] * 2, values[:keep])) < -1e-3 * values[0])
    ):
        assert abs(found.left[:, place].double().numpy() @ left[:, place]) == pytest.approx(1, abs=1e-4)
        assert abs(found.right[:, place].double().numpy() @ right[place]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("factors", KINDS.values(), ids=KINDS)
def test_the_effective_rank_is_that_of_the_dense_delta(factors):
    exact = dense_effective_rank(np.linalg.svd(flat(factors), compute_uv=False))
    assert spectrum(loaded(factors)).effective_rank == pytest.approx(exact, rel=1e-3)


def test_effective_ranks_of_known_spectra():
    """By hand: equal values count fully, one alone counts one, zeros count nothing."""
    assert spectrum(loaded(Factors(torch.eye(6)[:, :3], torch.eye(5)[:3]))).effective_rank == pytest.approx(3)
    assert spectrum(loaded(noise((9, 7), 1, seed=1))).effective_rank == pytest.approx(1)
    assert spectrum(loaded(noise((9, 7), 2, seed=1).times(0.0))).effective_rank == 0.0
    doubled = Factors(torch.eye(6)[:, :2] * torch.tensor([2.0, 1.0]), torch.eye(5)[:2])
    # Shares 2/3 and 1/3: exp(ln 3 − 2/3 ln 2).
    assert spectrum(loaded(doubled)).effective_rank == pytest.approx(3 / 2 ** (2 / 3))


def dense_overlap(one: np.ndarray, other: np.ndarray) -> float:
    """The share of one's energy in the other's leading directions, on the left and on the right, averaged."""
    left, values, right = np.linalg.svd(other, full_matrices=False)
    keep = min(LEADING, int((values > 1e-9 * values[0]).sum()))
    energy = (one**2).sum()
    rows = ((left[:, :keep].T @ one) ** 2).sum() / energy
    columns = ((one @ right[:keep].T) ** 2).sum() / energy
    return float(rows + columns) / 2


@pytest.mark.parametrize("rank", [1, 4, 8, 20])
@pytest.mark.parametrize("shape", [(40, 30), (12, 5, 3, 3)], ids=str)
def test_overlaps_are_those_of_the_dense_deltas(rank, shape):
    factors = [noise(shape, rank, seed=1), noise(shape, 4, seed=2), noise(shape, rank, seed=1).times(-3.0)]
    deltas = [loaded(one) for one in factors]
    found = overlap(deltas, [spectrum(one) for one in deltas], gram_matrix(deltas)).numpy()
    for a in range(3):
        for b in range(3):
            assert found[a, b] == pytest.approx(dense_overlap(flat(factors[a]), flat(factors[b])), abs=1e-4)


def test_a_low_rank_delta_lies_wholly_in_its_own_leading_subspace_and_a_strange_one_hardly():
    one, other = noise((400, 300), 4, seed=1), noise((400, 300), 4, seed=2)
    deltas = [loaded(one), loaded(other)]
    found = overlap(deltas, [spectrum(delta) for delta in deltas], gram_matrix(deltas))
    assert found.diagonal().tolist() == pytest.approx([1, 1], abs=1e-5)
    assert float(found[0, 1]) < 0.05


def test_the_overlap_of_a_zero_delta_is_zero():
    deltas = [loaded(noise((9, 7), 2, seed=1).times(0.0)), loaded(noise((9, 7), 2, seed=2))]
    found = overlap(deltas, [spectrum(delta) for delta in deltas], gram_matrix(deltas))
    assert found[0].tolist() == [0, 0]
