"""Deltas that are not low-rank: dense and Kronecker, against dense float64 NumPy."""

import numpy as np
import pytest
import torch

from lora_alloy.analysis.conflict import sign_conflict
from lora_alloy.analysis.similarity import gram_matrix
from lora_alloy.analysis.subspace import overlap, spectrum
from lora_alloy.lora.factors import Delta, LowRank, distance
from lora_alloy.lora.full import Dense, Kron
from lora_alloy.lora.target import Part
from lora_alloy.merging.combine import combined

SHAPES = [(12, 18), (12, 2, 3, 3)]


def made(kind: str, shape: tuple[int, ...], seed: int = 0) -> Delta:
    chance = torch.Generator().manual_seed(seed)
    inner = int(np.prod(shape[1:]))

    def noise(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=chance)

    if kind == "thin":
        return LowRank(noise(shape[0], 3), noise(3, inner), 0.5, shape)
    if kind == "kron":
        return Kron(noise(4, 2), noise(3, inner // 2), -1.5, shape)
    return Dense(noise(shape[0], inner), 0.7, shape)


def wide(delta: Delta) -> np.ndarray:
    """The delta in float64, by the textbook."""
    if isinstance(delta, LowRank):
        flat = delta.up.double().numpy() @ delta.down.double().numpy()
    elif isinstance(delta, Kron):
        flat = np.kron(delta.a.double().numpy(), delta.b.double().numpy())
    else:
        flat = delta.matrix.double().numpy()
    return (flat * delta.scale).reshape(delta.shape)


@pytest.mark.parametrize("kind", ["thin", "kron", "dense"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_form_gives_its_delta_its_blocks_and_its_halves(kind: str, shape: tuple[int, ...]) -> None:
    delta = made(kind, shape)
    expected = wide(delta)
    np.testing.assert_allclose(delta.dense().numpy(), expected, rtol=1e-5, atol=1e-6)
    rows, columns = torch.tensor([0, 5, 11]), torch.tensor([1, 7, 17])
    flat = expected.reshape(shape[0], -1)
    np.testing.assert_allclose(
        delta.block(rows, columns).numpy(), flat[[0, 5, 11]][:, [1, 7, 17]], rtol=1e-5, atol=1e-6
    )
    swapped = np.concatenate([expected[6:], expected[:6]])
    np.testing.assert_allclose(delta.halves_swapped().dense().numpy(), swapped, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(delta.times(-2.0).dense().numpy(), -2 * expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["thin", "kron", "dense"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("axis", "start", "length"), [(0, 3, 6), (0, 2, 5), (1, 0, 1)])
def test_a_part_is_the_cut_of_the_whole(
    kind: str, shape: tuple[int, ...], axis: int, start: int, length: int
) -> None:
    delta = made(kind, shape)
    cut = delta.part(Part(axis, start, length))
    expected = np.take(wide(delta), range(start, start + length), axis)
    assert cut.shape == expected.shape
    np.testing.assert_allclose(cut.dense().numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dot_products_among_all_forms_are_those_of_dense_numpy(shape: tuple[int, ...]) -> None:
    deltas = [made(kind, shape, seed) for seed, kind in enumerate(("thin", "kron", "dense", "kron", "thin"))]
    flat = np.stack([wide(delta).ravel() for delta in deltas])
    expected = flat @ flat.T
    norms = np.sqrt(np.diag(expected))
    off = np.abs(gram_matrix(deltas).numpy() - expected) / np.outer(norms, norms)
    assert off.max() < 1e-6


@pytest.mark.parametrize("kind", ["thin", "kron", "dense"])
def test_spectra_and_overlaps_are_those_of_the_matrix(kind: str) -> None:
    deltas = [made(kind, (12, 18)), made("dense", (12, 18), 5)]
    spectra = [spectrum(delta) for delta in deltas]
    expected = np.linalg.svd(wide(deltas[0]), compute_uv=False)
    values = spectra[0].values.numpy()
    np.testing.assert_allclose(values, expected[: len(values)], rtol=1e-4, atol=1e-4)
    shares = overlap(deltas, spectra, gram_matrix(deltas))
    flat, other = wide(deltas[0]), np.linalg.svd(wide(deltas[1]), full_matrices=False)
    left, right = other[0][:, :8], other[2][:8].T
    kept = (np.sum((left.T @ flat) ** 2) + np.sum((flat @ right) ** 2)) / (2 * np.sum(flat**2))
    assert float(shares[0, 1]) == pytest.approx(kept, rel=1e-4)


def test_sign_conflict_of_small_deltas_is_counted_entry_by_entry() -> None:
    deltas = [made("kron", (12, 18)), made("dense", (12, 18), 5)]
    share = float(sign_conflict(deltas, "x")[0, 1])
    assert share == pytest.approx(float(np.mean(wide(deltas[0]) * wide(deltas[1]) < 0)), abs=1e-9)


@pytest.mark.parametrize("kinds", ["kron", "dense", "thin kron", "kron kron dense", "thin thin"], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_combination_is_the_sum_in_the_smallest_exact_form(kinds: str, shape: tuple[int, ...]) -> None:
    deltas = [made(kind, shape, seed) for seed, kind in enumerate(kinds.split())]
    coefficients = [0.5, -1.25, 2.0][: len(deltas)]
    result, lost = combined(deltas, coefficients, 0, 0.0)
    expected = sum(factor * wide(delta) for factor, delta in zip(coefficients, deltas, strict=True))
    np.testing.assert_allclose(result.dense().numpy(), expected, rtol=1e-4, atol=1e-5)
    assert lost == 0.0
    form = {"kron": Kron, "thin thin": LowRank}.get(kinds, Dense)
    assert isinstance(result, form)


@pytest.mark.parametrize("kinds", ["kron", "dense", "thin kron"])
def test_a_truncated_combination_is_the_optimum_and_states_its_error(kinds: str) -> None:
    deltas = [made(kind, (12, 18), seed) for seed, kind in enumerate(kinds.split())]
    exact = sum(wide(delta) for delta in deltas)
    result, lost = combined(deltas, [1.0] * len(deltas), 4, 0.0)
    values = np.linalg.svd(exact, compute_uv=False)
    best = np.sqrt(np.sum(values[4:] ** 2) / np.sum(values**2))
    measured = np.linalg.norm(wide(result) - exact) / np.linalg.norm(exact)
    assert isinstance(result, LowRank) and result.rank == 4
    assert measured == pytest.approx(best, rel=1e-4) and lost == pytest.approx(best, rel=1e-4)


def test_distance_is_that_of_the_matrices_for_every_pair_of_forms() -> None:
    for one in ("thin", "kron", "dense"):
        for other in ("thin", "kron", "dense"):
            a, b = made(one, (12, 18)), made(other, (12, 18), 3)
            off, size = distance(a, b)
            assert off == pytest.approx(np.linalg.norm(wide(a) - wide(b)), rel=1e-5)
            assert size == pytest.approx(np.linalg.norm(wide(b)), rel=1e-5)
