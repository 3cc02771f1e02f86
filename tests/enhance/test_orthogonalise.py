"""DO-merging in coefficients, against Gram-Schmidt and Löwdin on the deltas themselves."""

from itertools import permutations
from math import sqrt

import numpy as np
import pytest
import torch

from lora_alloy.enhance import orthogonalise
from lora_alloy_testing import dense_formulas

both = pytest.mark.parametrize("symmetric", [False, True])


def rows_about(spread: float, count: int = 4, seed: int = 0) -> np.ndarray:
    """`(n, 40)` about a common direction, of different norms."""
    chance = np.random.default_rng(seed)
    rows = chance.normal(size=40) + spread * chance.normal(size=(count, 40))
    return rows * np.linspace(0.5, 2.0, count)[chance.permutation(count), None]


def turned(rows: np.ndarray, symmetric: bool = False) -> np.ndarray:
    gram = torch.from_numpy(rows @ rows.T)
    kept = gram.clone()
    made = orthogonalise.matrix(gram, symmetric=symmetric)
    assert gram.equal(kept)
    return made.numpy() @ rows


def cosines(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1)
    return rows @ rows.T / norms[:, None] / norms


def test_the_smaller_one_makes_way_for_the_larger():
    rows = np.array([[3.0, 4.0], [10.0, 0.0]])
    np.testing.assert_allclose(turned(rows), [[0.0, 5.0], [10.0, 0.0]], atol=1e-12)


def test_two_of_one_norm_turn_alike():
    # 60° apart: each turns by 15° away from the other.
    rows = 2 * np.array([[1.0, 0.0], [0.5, sqrt(3) / 2]])
    wanted = 2 * np.array(
        [[np.cos(np.pi / 12), -np.sin(np.pi / 12)], [np.sin(np.pi / 12), np.cos(np.pi / 12)]]
    )
    np.testing.assert_allclose(turned(rows), wanted, atol=1e-12)
    np.testing.assert_allclose(turned(rows, symmetric=True), wanted, atol=1e-12)


@pytest.mark.parametrize("spread", [0.7, 1.5, 20.0])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_gram_schmidt_and_lowdin_on_dense_deltas(spread, seed):
    rows = rows_about(spread, seed=seed)
    np.testing.assert_allclose(turned(rows), dense_formulas.gram_schmidt(rows), atol=1e-10)
    np.testing.assert_allclose(turned(rows, symmetric=True), dense_formulas.lowdin(rows), atol=1e-10)


@both
@pytest.mark.parametrize("spread", [0.15, 0.7, 20.0])
def test_norms_stay_and_the_order_does_not_matter(symmetric, spread):
    rows = rows_about(spread)
    made = turned(rows, symmetric)
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), np.linalg.norm(rows, axis=1), rtol=1e-9)
    for order in permutations(range(4)):
        np.testing.assert_allclose(turned(rows[list(order)], symmetric), made[list(order)], atol=1e-8)


@both
def test_the_order_does_not_matter_at_equal_norms(symmetric):
    rows = rows_about(1.0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    made = turned(rows, symmetric)
    np.testing.assert_allclose(made @ made.T, np.eye(4), atol=1e-9)
    for order in permutations(range(4)):
        np.testing.assert_allclose(turned(rows[list(order)], symmetric), made[list(order)], atol=1e-8)


@both
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-5, 1e-2, 0.05])
def test_duplicates_leave_each_other_alone_and_the_rest_keeps_clear_of_both(symmetric, sign, noise):
    rows = rows_about(3.0)
    rows[3] = sign * rows[0] * 0.75 + noise * np.linalg.norm(rows[0]) * rows_about(20.0, seed=9)[0] / 40
    assert abs(cosines(rows)[0, 3]) > 0.9
    made = turned(rows, symmetric)
    between, before = cosines(made), cosines(rows)
    assert between[0, 3] == pytest.approx(before[0, 3], abs=5e-3)
    assert np.abs(between[1:3, [0, 3]]).max() < 1e-4
    assert np.linalg.norm(made, axis=1) == pytest.approx(np.linalg.norm(rows, axis=1))
    # Nobody became another: each still points to where it pointed.
    own = (made * rows).sum(1) / np.linalg.norm(rows, axis=1) ** 2
    assert own.min() > 0.8


@both
def test_only_duplicates_change_nothing(symmetric):
    row = rows_about(1.0)[:1]
    rows = np.concatenate([row, 2 * row, -0.5 * row])
    np.testing.assert_allclose(turned(rows, symmetric), rows, atol=1e-9)


@both
def test_a_chain_of_likenesses_is_left_alone_whole(symmetric):
    # 24° apart each: the first and the third are beyond the limit only by way of the second.
    angles = np.radians([0.0, 24.0, 48.0])
    rows = np.stack([np.cos(angles), np.sin(angles)], 1) * np.array([[3.0], [2.0], [1.0]])
    np.testing.assert_allclose(turned(rows, symmetric), rows, atol=1e-9)


@both
def test_what_lies_in_the_span_of_the_others_stays_as_it_is(symmetric):
    """Three directions in a plane: there is no room for the third, and rounding is not made a LoRA of it."""
    angles = np.radians([0.0, 120.0, 60.0 + 180.0])
    rows = np.stack([np.cos(angles), np.sin(angles)], 1) * np.array([[3.0], [2.0], [1.0]])
    made = turned(rows, symmetric)
    assert np.isfinite(made).all()
    np.testing.assert_allclose(made[2], rows[2], atol=1e-9)


@both
def test_zeros_stay_zeros_and_disturb_nobody(symmetric):
    rows = rows_about(1.0)
    with_zero = np.concatenate([rows[:2], np.zeros((1, 40)), rows[2:]])
    made = turned(with_zero, symmetric)
    assert not made[2].any()
    np.testing.assert_allclose(np.delete(made, 2, 0), turned(rows, symmetric), atol=1e-10)
    assert not turned(np.zeros((3, 5)), symmetric).any()


@both
def test_one_lora_alone_and_orthogonal_ones_stay_as_they_are(symmetric):
    rows = rows_about(1.0)
    np.testing.assert_allclose(turned(rows[:1], symmetric), rows[:1], atol=1e-12)
    np.testing.assert_allclose(turned(3 * np.eye(4), symmetric), 3 * np.eye(4), atol=1e-12)


@both
@pytest.mark.parametrize("size", [1e-30, 1e12])
def test_the_size_of_the_numbers_does_not_matter(symmetric, size):
    rows = rows_about(1.0)
    np.testing.assert_allclose(turned(size * rows, symmetric) / size, turned(rows, symmetric), atol=1e-9)


@both
def test_a_negated_lora_comes_out_negated(symmetric):
    rows = rows_about(1.0)
    signs = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    np.testing.assert_allclose(turned(signs * rows, symmetric), signs * turned(rows, symmetric), atol=1e-9)
