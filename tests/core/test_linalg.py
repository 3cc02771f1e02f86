"""Low-rank algebra against dense float64 NumPy: norms, and truncation as the SVD optimum of Eckart and Young."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.core.linalg import product_norm, truncate
from lora_alloy_testing.builders import as_numpy


def factors(o: int, i: int, r: int, seed: int = 0, decay: float = 1.0) -> tuple[Tensor, Tensor]:
    """Factors whose directions shrink by `decay` from one to the next."""
    generator = torch.Generator().manual_seed(seed)
    up = torch.randn(o, r, generator=generator) * decay ** torch.arange(r)
    return up, torch.randn(r, i, generator=generator)


CASES = {
    "thin": factors(40, 30, 6),
    "of falling values": factors(40, 30, 12, decay=0.5),
    "rank above both sizes": factors(7, 5, 20),
    "rank 1": factors(40, 30, 1),
    "one row": factors(1, 30, 4),
    "tiny": tuple(1e-4 * one for one in factors(40, 30, 6)),
    "huge": tuple(1e4 * one for one in factors(40, 30, 6)),
}
every_case = pytest.mark.parametrize(("up", "down"), CASES.values(), ids=CASES)


@every_case
def test_the_norm_of_a_product_is_that_of_the_dense_product(up, down):
    assert product_norm(up, down) == pytest.approx(np.linalg.norm(as_numpy(up) @ as_numpy(down)), rel=1e-6)


def test_the_norm_is_exact_where_terms_cancel():
    up, down = (one.double() for one in factors(40, 30, 4))
    off = up.clone()
    off[3, 2] += 1e-9
    found = product_norm(torch.cat([off, -up], 1), torch.cat([down, down]))
    assert found == pytest.approx(float(1e-9 * down[2].norm()), rel=1e-5)


def test_the_norm_of_nothing_is_zero():
    assert product_norm(torch.zeros(3, 0), torch.zeros(0, 4)) == 0.0
    assert product_norm(torch.zeros(3, 2), torch.ones(2, 4)) == 0.0


def optimum(up: Tensor, down: Tensor, rank: int) -> tuple[np.ndarray, float]:
    """The best approximation of a rank, and its relative error, from a dense SVD."""
    dense = as_numpy(up) @ as_numpy(down)
    left, values, right = np.linalg.svd(dense, full_matrices=False)
    best = left[:, :rank] * values[:rank] @ right[:rank]
    return best, float(np.linalg.norm(values[rank:]) / np.linalg.norm(values))


@every_case
@pytest.mark.parametrize("rank", [1, 2, 5, 10, 50])
def test_truncation_to_a_rank_is_the_best_there_is_and_says_its_error(up, down, rank):
    new_up, new_down, stated = truncate(up, down, rank, 0.0)
    best, error = optimum(up, down, rank)
    found = as_numpy(new_up) @ as_numpy(new_down)
    size = np.linalg.norm(as_numpy(up) @ as_numpy(down))
    assert new_up.shape[1] == new_down.shape[0] <= rank
    assert np.linalg.norm(found - best) < 1e-5 * size
    assert stated == pytest.approx(error, abs=1e-6)
    assert stated == pytest.approx(np.linalg.norm(found - as_numpy(up) @ as_numpy(down)) / size, abs=1e-6)


@every_case
@pytest.mark.parametrize("tolerance", [1e-3, 0.01, 0.1, 0.5, 0.9])
def test_truncation_to_a_tolerance_keeps_no_direction_too_many_and_none_too_few(up, down, tolerance):
    new_up, _, stated = truncate(up, down, None, tolerance)
    kept = new_up.shape[1]
    assert stated <= tolerance
    assert optimum(up, down, kept)[1] == pytest.approx(stated, abs=1e-6)
    assert kept == 1 or optimum(up, down, kept - 1)[1] > tolerance


@every_case
def test_without_rank_or_tolerance_only_rounding_is_lost(up, down):
    new_up, new_down, stated = truncate(up, down, None, 0.0)
    dense = as_numpy(up) @ as_numpy(down)
    assert np.linalg.norm(as_numpy(new_up) @ as_numpy(new_down) - dense) < 1e-6 * np.linalg.norm(dense)
    assert stated < 1e-6
    assert new_up.shape[1] <= min(*dense.shape, up.shape[1])


def test_a_rank_and_a_tolerance_together_keep_what_both_allow():
    up, down = CASES["of falling values"]
    assert truncate(up, down, 2, 0.5)[0].shape[1] <= 2
    assert truncate(up, down, 12, 0.5)[0].shape[1] == truncate(up, down, None, 0.5)[0].shape[1]


def test_repeated_directions_are_joined():
    up, down = factors(40, 30, 3)
    new_up, _, stated = truncate(torch.cat([up, up, -up], 1), torch.cat([down, down, down]), None, 0.0)
    assert new_up.shape[1] == 3
    assert stated < 1e-6


def test_a_product_of_zero_stays_zero_at_rank_one():
    up, down = factors(40, 30, 3)
    new_up, new_down, stated = truncate(torch.cat([up, up], 1), torch.zeros(6, 30), None, 0.0)
    assert (new_up.shape, new_down.shape, stated) == ((40, 1), (1, 30), 0.0)
    assert not (new_up @ new_down).any()


def test_singular_values_are_shared_between_the_two_factors():
    new_up, new_down, _ = truncate(*factors(40, 30, 6), None, 0.0)
    torch.testing.assert_close(new_up.norm(dim=0), new_down.norm(dim=1))
    assert new_up.dtype == new_down.dtype == torch.float32


def test_factors_are_left_as_they_were():
    up, down = factors(40, 30, 6)
    copies = up.clone(), down.clone()
    truncate(up, down, 2, 0.0)
    assert up.equal(copies[0])
    assert down.equal(copies[1])
