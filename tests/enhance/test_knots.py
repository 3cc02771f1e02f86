"""KnOTS' shared basis from factors and from values, against a decomposition of all deltas side by side."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.enhance import knots
from lora_alloy.merging.methods import METHODS, is_linear
from lora_alloy_testing import dense_formulas
from lora_alloy_testing.whole_or_tiled import merged

Given = list[tuple[Tensor, Tensor] | Tensor]
STRENGTHS = torch.tensor([0.75, -0.5, 1.25])


def factors(ranks: tuple[int, ...] = (2, 3, 4), shape: tuple[int, int] = (30, 20), seed: int = 0) -> Given:
    chance = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(shape[0], rank, generator=chance), torch.randn(rank, shape[1], generator=chance))
        for rank in ranks
    ]


def values(given: Given) -> Tensor:
    """`(n, o, c)` float64."""
    return torch.stack(
        [one.double() if isinstance(one, Tensor) else one[0].double() @ one[1].double() for one in given]
    )


def cases() -> dict[str, Given]:
    thin = factors()
    up, down = factors((3,))[0]
    return {
        "thin": thin,
        "one is dense": [*thin[:2], values(thin)[2].float()],
        "all are dense": list(values(thin).float()),
        "dense and tall": list(values(factors((2, 2), (90, 20))).float()),
        "one is dense and tall": [*factors((2,), (90, 20)), values(factors((20,), (90, 20), 1))[0].float()],
        "ranks beyond the height": factors((20, 20, 20)),
        "ranks beyond the width": factors((25,), (60, 20)),
        "redundant factors": [(torch.cat([up, up], 1), torch.cat([down, down]))],
        "duplicates": [(up, down), (2 * up, -down), (up, down)],
        "one of zeros": [thin[0], (torch.zeros(30, 2), torch.zeros(2, 20)), thin[2]],
        "one row": factors((1, 1), (1, 20)),
        "one column": factors((1, 1), (20, 1)),
        "large and small": [(1e4 * thin[0][0], thin[0][1]), thin[1]],
    }


every_kind = pytest.mark.parametrize("kind", cases())


@every_kind
def test_the_blocks_give_the_deltas_back(kind):
    given = cases()[kind]
    basis, blocks, lost = knots.shared(given)
    expected = values(given)
    assert lost == 0.0
    assert blocks.shape == (len(given), basis.shape[1], expected.shape[2])
    largest = float(expected.abs().max())
    torch.testing.assert_close((basis @ blocks).double(), expected, rtol=0, atol=3e-6 * largest)


@every_kind
def test_it_is_the_decomposition_of_all_deltas_side_by_side(kind):
    given = cases()[kind]
    basis, blocks, _ = knots.shared(given)
    side_by_side = np.concatenate(list(values(given).numpy()), 1)
    expected = np.linalg.svd(side_by_side, compute_uv=False)
    rank = int((expected > 1e-6 * expected[0]).sum())
    assert basis.shape == (side_by_side.shape[0], rank)
    np.testing.assert_allclose(basis.norm(dim=0), expected[:rank], rtol=1e-4)
    rows = blocks.transpose(0, 1).flatten(1)
    torch.testing.assert_close(rows @ rows.T, torch.eye(rank), rtol=0, atol=1e-3)


def test_factors_and_values_give_one_basis():
    basis, blocks, _ = knots.shared(factors())
    again, same, _ = knots.shared(list(values(factors()).float()))
    torch.testing.assert_close(again, basis, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(same, blocks, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("limit", [1, 3, 6])
@pytest.mark.parametrize("kind", ["thin", "all are dense"])
def test_the_limit_costs_what_it_says_and_no_less_could_be_lost(kind, limit):
    given = cases()[kind]
    basis, blocks, lost = knots.shared(given, rank_limit=limit)
    expected = values(given)
    assert basis.shape[1] == limit
    error = float(((basis @ blocks).double() - expected).norm() / expected.norm())
    assert lost == pytest.approx(error, rel=1e-5)
    spectrum = np.linalg.svd(np.concatenate(list(expected.numpy()), 1), compute_uv=False)
    assert lost == pytest.approx(np.sqrt((spectrum[limit:] ** 2).sum() / (spectrum**2).sum()), rel=1e-5)


def test_zeros_have_a_basis_of_zeros():
    for given in (
        [(torch.zeros(30, 2), torch.zeros(2, 20))] * 2,
        [torch.zeros(5, 20), torch.zeros(5, 20)],
    ):
        basis, blocks, lost = knots.shared(given)
        assert (basis.shape[1], lost) == (1, 0.0)
        assert not (basis @ blocks).any()


@pytest.mark.parametrize("name", [name for name in METHODS if is_linear(METHODS[name])])
def test_a_linear_method_in_the_basis_is_the_method(name):
    basis, blocks, _ = knots.shared(factors())
    whole = values(factors()).float()
    flat = whole.flatten(1).double()
    coefficients = METHODS[name].coefficients(flat @ flat.T, STRENGTHS.double()).float()
    found = basis @ torch.einsum("n,nrc->rc", coefficients, blocks)
    torch.testing.assert_close(found, merged(METHODS[name], whole, STRENGTHS), rtol=1e-4, atol=1e-4)


def test_the_basis_depends_on_no_order():
    basis, blocks, _ = knots.shared(factors())
    for order in permutations(range(3)):
        again, moved, _ = knots.shared([factors()[k] for k in order])
        torch.testing.assert_close(again, basis, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(moved, blocks[list(order)], rtol=1e-4, atol=1e-4)


def test_blocks_of_the_reference_are_the_same_but_for_signs():
    basis, blocks, _ = knots.shared(factors())
    expected, parts = dense_formulas.knots_blocks(list(values(factors()).numpy()))
    signs = np.sign((basis.numpy() * expected).sum(0))
    np.testing.assert_allclose(basis, expected * signs, rtol=0, atol=1e-4)
    np.testing.assert_allclose(blocks, np.stack(parts) * signs[:, None], rtol=0, atol=1e-5)


def test_inputs_are_left_alone():
    given = factors()
    knots.shared(given)
    for (up, down), (same_up, same_down) in zip(given, factors(), strict=True):
        assert up.equal(same_up)
        assert down.equal(same_down)
