"""Laws that hold for every linear merge method of the registry, on its coefficients alone."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.merging.methods import METHODS, degree, is_linear
from lora_alloy_testing import reference

LINEAR = {name: module for name, module in METHODS.items() if is_linear(module)}
every_method = pytest.mark.parametrize("method", LINEAR.values(), ids=LINEAR)
averaging = pytest.mark.parametrize(
    "method", [one for name, one in LINEAR.items() if name in reference.BLENDS], ids=str
)


def vectors(count: int, seed: int = 0) -> np.ndarray:
    """`(n, 30)`: directions with no symmetry, of different lengths."""
    random = np.random.default_rng(seed)
    return random.normal(size=(count, 30)) * random.uniform(0.5, 3.0, size=(count, 1))


def pairs_that_cancel() -> np.ndarray:
    """Two pairs of nearly opposite rows, and a fifth that stays: no blend may be led by what the pairs leave."""
    random = np.random.default_rng(0)
    first, rest = random.normal(size=(2, 30)), random.normal(size=(3, 30))
    return np.concatenate([first, 1e-3 * rest[:2] - first, 0.3 * rest[2:]])


def gram_of(rows: np.ndarray) -> Tensor:
    return torch.from_numpy(rows @ rows.T)


def mixed(method, rows: np.ndarray, strengths: list[float]) -> np.ndarray:
    """What a method makes of dense rows."""
    coefficients = method.coefficients(gram_of(rows), torch.tensor(strengths, dtype=torch.float64))
    return coefficients.numpy() @ rows


def test_every_method_is_known_to_the_independent_references():
    assert set(METHODS) == set(reference.METHODS)
    degrees = {name for name, module in METHODS.items() if degree(module, {"divisor": "mass"}) == 0}
    assert degrees == reference.AVERAGES
    assert set(LINEAR) == set(reference.LINEAR)


@every_method
@pytest.mark.parametrize("strength", [1.0, -1.0])
def test_one_lora_alone_comes_out_unchanged(method, strength):
    rows = vectors(1)
    np.testing.assert_allclose(mixed(method, rows, [strength]), strength * rows[0], rtol=1e-12)


@every_method
@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_order_of_the_loras_does_not_matter(method, count):
    rows, strengths = vectors(count, seed=count), [0.9, -0.4, 0.7, 0.2][:count]
    first = mixed(method, rows, strengths)
    for order in permutations(range(count)):
        again = mixed(method, rows[list(order)], [strengths[k] for k in order])
        np.testing.assert_allclose(again, first, rtol=0, atol=1e-10)


@every_method
@pytest.mark.parametrize("count", [3, 4])
def test_the_order_does_not_matter_at_equal_strengths_either(method, count):
    rows = vectors(count, seed=7)
    first = mixed(method, rows, [1.0] * count)
    for order in permutations(range(count)):
        np.testing.assert_allclose(mixed(method, rows[list(order)], [1.0] * count), first, rtol=0, atol=1e-10)


@every_method
@pytest.mark.parametrize("factor", [0.25, 3.0, -1.0, -0.5])
def test_a_common_factor_of_all_strengths_comes_out_to_the_methods_degree(method, factor):
    rows, strengths = vectors(3), [0.9, -0.4, 0.7]
    once = mixed(method, rows, strengths)
    expected = (factor if method.DEGREE else np.sign(factor)) * once
    found = mixed(method, rows, [factor * strength for strength in strengths])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@every_method
@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_louder_loras_make_a_louder_result(method, factor):
    rows, strengths = vectors(3), [0.9, -0.4, 0.7]
    np.testing.assert_allclose(
        mixed(method, factor * rows, strengths), factor * mixed(method, rows, strengths), rtol=1e-9
    )


@every_method
def test_a_negative_strength_is_a_negated_lora(method):
    rows = vectors(3)
    turned = rows * np.array([[1.0], [-1.0], [1.0]])
    found = mixed(method, rows, [0.9, -0.4, 0.7])
    np.testing.assert_allclose(found, mixed(method, turned, [0.9, 0.4, 0.7]), rtol=0, atol=1e-12)


@averaging
def test_an_average_of_one_lora_with_itself_is_that_lora(method):
    row = vectors(1)
    for strengths in ([1.0, 1.0], [0.3, 0.7], [1.0, 0.5, 0.25]):
        rows = np.repeat(row, len(strengths), 0)
        np.testing.assert_allclose(mixed(method, rows, strengths), row[0], rtol=1e-6)


def test_a_sum_of_one_lora_with_itself_has_the_summed_strength():
    rows = np.repeat(vectors(1), 3, 0)
    np.testing.assert_allclose(mixed(METHODS["weighted_sum"], rows, [1.0, 0.5, -0.2]), 1.3 * rows[0])


@averaging
def test_an_average_is_never_longer_than_the_longest_lora(method):
    for seed in range(5):
        rows = vectors(4, seed)
        found = np.linalg.norm(mixed(method, rows, [1.0, 0.5, 0.5, 0.1]))
        assert found <= np.linalg.norm(rows, axis=1).max() * (1 + 1e-12)


@every_method
@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (np.repeat(vectors(1), 2, 0), "identical"),
        (vectors(1) * np.array([[1.0], [-1.0]]), "opposite"),
        (vectors(1) * np.array([[10.0], [-1.0]]), "opposite, of different lengths"),
        (vectors(1) + 1e-7 * vectors(2, 1), "near-parallel"),
        (vectors(1) * np.array([[1.0], [-1.0]]) + 1e-7 * vectors(2, 1), "near-antipodal"),
        (vectors(1) * np.array([[1.0], [-1.0]]) + 1e-2 * vectors(2, 1), "nearly antipodal"),
        (vectors(2) * np.array([[1e6], [1e-6]]), "a giant and a dwarf"),
        (np.zeros((2, 30)), "zeros"),
        (np.concatenate([vectors(1), np.zeros((1, 30))]), "one of them zero"),
        (pairs_that_cancel(), "pairs that cancel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_coefficients_stay_finite_and_no_louder_than_the_parts(method, rows, why):
    """No coefficient is so large that it lifts rounding to the size of a LoRA."""
    source = torch.Generator().manual_seed(0)
    for _ in range(20):
        shaken = 1 + 1e-7 * torch.randn(len(rows), len(rows), dtype=torch.float64, generator=source)
        gram = gram_of(rows) * (shaken + shaken.T) / 2  # as exact as float32 factors let it be
        coefficients = method.coefficients(gram, torch.ones(len(rows), dtype=torch.float64))
        assert torch.isfinite(coefficients).all()
        lifted = coefficients.abs().numpy() * np.linalg.norm(rows, axis=1)
        assert lifted.max() <= 50 * np.linalg.norm(rows, axis=1).max()


@every_method
@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_lora_that_is_there_twice_and_once_against_itself_is_no_louder(method, noise):
    rows = np.repeat(vectors(1), 3, 0) + noise * vectors(3, 1)
    strengths = torch.tensor([0.75, -0.5, 1.25], dtype=torch.float64)
    coefficients = method.coefficients(gram_of(rows), strengths)
    assert float(coefficients.abs().max()) <= 50
    assert np.linalg.norm(coefficients.numpy() @ rows) <= 1.01 * 2.5 * np.linalg.norm(rows, axis=1).max()


@every_method
@pytest.mark.parametrize("strengths", [[0.75, 0.25], [1.0, 0.4], [0.9, 0.1]], ids=str)
@pytest.mark.parametrize("noise", [1e-6, 1e-4, 1e-3, 1e-2])
def test_loras_all_but_opposite_at_other_strengths_lift_no_noise(method, strengths, noise):
    rows = vectors(1) * np.array([[1.0], [-1.0]]) + noise * vectors(2, 1)
    given = torch.tensor(strengths, dtype=torch.float64)
    assert float(method.coefficients(gram_of(rows), given).abs().max()) < 25


@every_method
def test_a_method_leaves_its_inputs_alone(method):
    gram, strengths = gram_of(vectors(3)), torch.tensor([0.9, -0.4, 0.7], dtype=torch.float64)
    kept = gram.clone(), strengths.clone()
    method.coefficients(gram, strengths).mul_(2)
    assert gram.equal(kept[0])
    assert strengths.equal(kept[1])
