"""Every method against its own formula on dense float64 arrays, and against numbers worked out by hand."""

from math import cos, pi, sin, sqrt

import numpy as np
import pytest
import torch

from lora_alloy.merging.blend import mean_strength
from lora_alloy.merging.methods import METHODS
from lora_alloy_testing import reference


def mixed(name: str, rows: np.ndarray, strengths: list[float]) -> np.ndarray:
    coefficients = METHODS[name].coefficients(
        torch.from_numpy(rows @ rows.T), torch.tensor(strengths, dtype=torch.float64)
    )
    return coefficients.numpy() @ rows


def scattered(count: int, seed: int, spread: float) -> np.ndarray:
    """Rows about a common direction; the larger `spread`, the less they have in common."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=40) + spread * random.normal(size=(count, 40))
    return rows * random.uniform(0.3, 2.0, size=(count, 1))


@pytest.mark.parametrize("name", reference.LINEAR)
@pytest.mark.parametrize("spread", [0.1, 1.0, 20.0])
@pytest.mark.parametrize(
    "strengths",
    [[1.0, 1.0], [0.7, 0.3], [0.9, -0.4], [1.0, 0.5, 0.8], [1.0, 1.0, 1.0], [0.5, -0.8, 1.2, 0.1]],
)
def test_a_method_equals_its_formula_on_dense_arrays(name, spread, strengths):
    rows = scattered(len(strengths), len(strengths), spread)
    expected = reference.METHODS[name](list(rows), strengths)
    np.testing.assert_allclose(mixed(name, rows, strengths), expected, rtol=0, atol=1e-8 * abs(rows).max())


def test_slerp_of_two_of_one_length_is_the_seeds_formula_itself():
    a, b = np.array([2.0, 0.0, 0.0]), np.array([2 * cos(1.2), 2 * sin(1.2), 0.0])
    t = 0.25  # of b: the strengths are 0.75 and 0.25
    expected = sin(0.75 * 1.2) / sin(1.2) * a + sin(0.25 * 1.2) / sin(1.2) * b
    np.testing.assert_allclose(mixed("slerp", np.stack([a, b]), [1 - t, t]), expected, rtol=1e-12)
    # On the circle itself: a quarter of the way from 0 to 1.2.
    np.testing.assert_allclose(expected, [2 * cos(0.3), 2 * sin(0.3), 0.0], rtol=1e-12)


def test_slerp_of_two_lengths_has_the_mean_length():
    rows = np.array([[3.0, 0.0], [0.0, 1.0]])
    found = mixed("slerp", rows, [1.0, 1.0])
    np.testing.assert_allclose(found, 2.0 * np.array([3.0, 1.0]) / sqrt(10.0), rtol=1e-12)


def test_slerp_takes_the_strongest_first():
    rows = np.eye(3)
    strengths = [0.2, 0.5, 0.3]
    # By hand: from e1 (0.5) towards e2 (0.3) by 3/8, from there towards e0 (0.2) by 1/5.
    turn = 3 / 8 * pi / 2
    pair = np.array([0.0, cos(turn), sin(turn)])
    expected = cos(pi / 10) * pair + sin(pi / 10) * rows[0]
    np.testing.assert_allclose(mixed("slerp", rows, strengths), expected, rtol=1e-12)


def test_the_karcher_mean_of_two_is_slerp():
    rows = scattered(2, 3, 5.0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(
        mixed("karcher", rows, [0.7, 0.3]), mixed("slerp", rows, [0.7, 0.3]), rtol=1e-9
    )


def test_the_karcher_mean_of_orthogonal_directions_lies_between_them():
    found = mixed("karcher", np.eye(4), [1.0] * 4)
    np.testing.assert_allclose(found, [0.5] * 4, rtol=1e-12)


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("spread", [0.5, 3.0, 100.0])
def test_no_pull_is_left_at_the_karcher_mean(count, spread):
    """Its defining property: the logarithms of all directions add up to nothing."""
    rows, strengths = scattered(count, 11, spread), [1.0, 0.6, 0.9, 0.3, 1.2, 0.8, 0.5, 0.7][:count]
    found = mixed("karcher", rows, strengths)
    mean = found / np.linalg.norm(found)
    pull = sum(
        strength * reference.logarithm(mean, row / np.linalg.norm(row))
        for strength, row in zip(strengths, rows, strict=True)
    )
    assert np.linalg.norm(pull) < 1e-8


def test_the_karcher_mean_of_directions_almost_all_round_is_still_found():
    """Three directions 115° apart leave little to tell the mean by, but more than rounding."""
    angles = np.radians([90.0, 90.0 + 115.0, 90.0 - 115.0])
    rows = np.stack([np.cos(angles), np.sin(angles), np.full(3, 0.15)], axis=1)
    expected = reference.karcher(list(rows), [1.0, 1.0, 1.0])
    np.testing.assert_allclose(mixed("karcher", rows, [1.0, 1.0, 1.0]), expected, rtol=0, atol=1e-6)


def test_where_two_loras_all_but_cancel_spherical_methods_take_their_average():
    rows = np.array([[1.0, 0.02], [-1.0, 0.02]])
    for name in ("slerp", "karcher"):
        np.testing.assert_allclose(mixed(name, rows, [1.0, 1.0]), [0.0, 0.02], rtol=0, atol=1e-12)


def test_a_normalised_sum_of_orthogonal_loras_is_as_loud_as_one():
    # (3·2, 4·2) / 5 of two LoRAs of norm 2.
    np.testing.assert_allclose(mixed("normalize", 2 * np.eye(2), [3.0, -4.0]), [1.2, -1.6], rtol=1e-12)


@pytest.mark.parametrize(
    ("strengths", "expected"),
    [
        ([1.0, 1.0], 1.0),
        ([1.0, -1.0, 1.0], 1.0),
        ([0.5], 0.5),
        ([-0.5], 0.5),
        ([0.5, 0.5], 0.5),
        ([2.0, 1.0], 5 / 3),
        ([0.8, -0.4], 2 / 3),
    ],
)
def test_the_mean_strength_is_that_of_the_definition(strengths, expected):
    given = torch.tensor(strengths, dtype=torch.float64)
    assert mean_strength(given) == pytest.approx(expected, rel=1e-12)
    assert reference.mean_strength(strengths) == pytest.approx(expected, rel=1e-12)
