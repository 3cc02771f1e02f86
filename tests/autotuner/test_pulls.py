"""Dot products within row spaces, and what scores make of them, against float64."""

import numpy as np
import pytest
import torch

from lora_alloy.autotuner.pulls import Pulls, dot_products, row_space
from lora_alloy.autotuner.reached import energies
from lora_alloy.autotuner.scores import Errors, own_foreign, worst
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.full import Dense, Kron


def low(rows: int, columns: int, rank: int, seed: int, scale: float = 0.5) -> LowRank:
    chance = torch.Generator().manual_seed(seed)
    up, down = torch.randn(rows, rank, generator=chance), torch.randn(rank, columns, generator=chance)
    return LowRank(up, down, scale, (rows, columns))


def matrices(deltas) -> list[np.ndarray]:
    return [delta.flat().double().numpy() for delta in deltas]


def projector(matrix: np.ndarray) -> np.ndarray:
    """Onto the row space, by the textbook: the pseudo-inverse."""
    return np.linalg.pinv(matrix, rcond=1e-5) @ matrix


def hollow() -> LowRank:
    """Of rank 2, though its factors have 5: two downs are the same, and one up is zero."""
    full = low(12, 9, 5, 3)
    down, up = full.down.clone(), full.up.clone()
    down[1] = down[0]
    up[:, 4], up[:, 3] = 0.0, up[:, 2]
    return LowRank(up, down, 1.0, (12, 9))


CASES = {
    "low-rank": [low(12, 9, 2, 0), low(12, 9, 3, 1), low(12, 9, 1, 2)],
    "identical": [low(12, 9, 2, 0)] * 2,
    "opposite": [low(12, 9, 2, 0), low(12, 9, 2, 0).times(-1.0)],
    "hollow factors": [hollow(), low(12, 9, 3, 1)],
    "one of zeros": [low(12, 9, 2, 0), low(12, 9, 2, 1).times(0.0)],
    "of different sizes": [low(12, 9, 2, 0), low(12, 9, 2, 1, scale=1e-4)],
    "higher rank than columns": [low(12, 3, 8, 0), low(12, 3, 2, 1)],
    "dense": [Dense(low(12, 9, 9, 4).flat(), 1.0, (12, 9)), low(12, 9, 2, 1)],
    "dense and wide": [Dense(low(4, 9, 3, 4).flat(), 1.0, (4, 9)), low(4, 9, 2, 1)],
    "Kronecker": [
        Kron(
            torch.randn(3, 3, generator=torch.Generator().manual_seed(1)),
            low(4, 3, 2, 0).flat(),
            1.0,
            (12, 9),
        ),
        low(12, 9, 2, 1),
    ],
}
every_case = pytest.mark.parametrize("deltas", CASES.values(), ids=CASES)


@every_case
def test_dot_products_are_those_of_the_matrices(deltas):
    gram, own = dot_products(deltas)
    full = matrices(deltas)
    expected = np.array([[np.sum(a * b) for b in full] for a in full])
    scale = np.abs(expected).max()
    np.testing.assert_allclose(gram, expected, rtol=1e-5, atol=1e-6 * scale)
    for k, matrix in enumerate(full):
        seen = [one @ projector(matrix) for one in full]
        expected = np.array([[np.sum(a * b) for b in seen] for a in seen])
        np.testing.assert_allclose(own[k], expected, rtol=1e-4, atol=1e-5 * scale)


@every_case
def test_row_spaces_are_orthonormal_and_hold_the_delta(deltas):
    for delta in deltas:
        basis = row_space(delta).double().numpy()
        matrix = delta.flat().double().numpy()
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-5)
        np.testing.assert_allclose(
            matrix @ basis @ basis.T, matrix, atol=1e-5 * max(np.abs(matrix).max(), 1e-9)
        )
        if not isinstance(delta, Dense):
            assert basis.shape[1] == np.linalg.matrix_rank(
                matrix, tol=1e-4 * np.linalg.norm(matrix, 2) + 1e-30
            )


def test_a_delta_of_zeros_reads_nothing():
    assert row_space(low(12, 9, 2, 0).times(0.0)).shape == (9, 0)
    assert row_space(Dense(torch.zeros(12, 9), 1.0, (12, 9))).shape == (9, 0)


@every_case
def test_energies_of_a_combination_are_those_of_the_merge(deltas):
    chance = torch.Generator().manual_seed(9)
    coefficients = torch.randn(len(deltas), generator=chance, dtype=torch.float64)
    strengths = torch.linspace(0.5, -1.5, len(deltas), dtype=torch.float64)
    gram, own = dot_products(deltas)
    pulls = Pulls(tuple(range(len(deltas))), (0,), strengths[None], gram[None], own[None])
    near, far = pulls.energies(coefficients[None])
    full = matrices(deltas)
    merged = sum(float(c) * one for c, one in zip(coefficients, full, strict=True))
    scale = sum(float(np.sum(one**2)) for one in full)
    made = Dense(torch.tensor(merged, dtype=torch.float32), 1.0, deltas[0].shape)
    for k, (delta, matrix) in enumerate(zip(deltas, full, strict=True)):
        error = merged - float(strengths[k]) * matrix
        expected = (
            np.sum((error @ projector(matrix)) ** 2),
            np.sum(error**2),
            np.sum((float(strengths[k]) * matrix) ** 2),
        )
        found = float(near[0, k]), float(far[0, k]), float(pulls.whole[0, k])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale)
        for result in (made, _in_factors(made)):
            np.testing.assert_allclose(
                energies(result, delta, float(strengths[k])), expected, rtol=1e-4, atol=1e-5 * scale
            )


def _in_factors(made: Dense) -> LowRank:
    u, s, v = torch.linalg.svd(made.matrix, full_matrices=False)
    return LowRank(u * s, v, 1.0, made.shape)


def test_a_score_typed_by_hand():
    # Δ1 reads the first input, Δ2 the second; the merge is half of both. Own: it lacks half of each; foreign: half of
    # the other is there, which has twice the norm of the first.
    first = LowRank(torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0, 0.0]]), 1.0, (2, 2))
    second = LowRank(torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0, 1.0]]), 1.0, (2, 2))
    merged = Dense(torch.tensor([[0.5, 0.0], [0.0, 1.0]]), 1.0, (2, 2))
    found = torch.tensor([energies(merged, one, 1.0) for one in (first, second)], dtype=torch.float64).T
    errors = Errors.of(*found)
    torch.testing.assert_close(errors.own, torch.tensor([0.5, 0.5], dtype=torch.float64))
    torch.testing.assert_close(errors.foreign, torch.tensor([1.0, 0.25], dtype=torch.float64))
    each = (0.25 + 0.25) ** 0.5, (0.25 + 0.25 * 0.0625) ** 0.5
    assert own_foreign(errors) == pytest.approx(-sum(each) / 2)
    assert worst(errors) == pytest.approx(-max(each))


def test_scores_leave_out_loras_of_zeros_and_are_best_at_zero():
    nothing = torch.zeros(2, dtype=torch.float64)
    whole = torch.tensor([1.0, 0.0], dtype=torch.float64)
    errors = Errors.of(nothing, nothing, whole)
    assert own_foreign(errors) == 0.0 and worst(errors) == 0.0
    assert own_foreign(Errors.of(nothing, nothing, nothing)) == 0.0
    worse = Errors.of(nothing + 0.1, nothing + 0.2, whole)
    assert own_foreign(worse) < 0.0
