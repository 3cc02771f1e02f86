"""Laws of every merge method on dense deltas, run as the engine runs it: whole, or tile by tile."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.core.params import Choice, explained, settable
from lora_alloy.merging.methods import METHODS, degree, is_linear, verb
from lora_alloy_testing.whole_or_tiled import merged

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
STRENGTHS = torch.tensor([0.75, -0.5, 1.25])

# Every method, and TIES in all its forms.
CASES = {
    **{name: (method, {}) for name, method in METHODS.items()},
    **{
        f"ties, {vote}, {divisor}, {unit}": (
            METHODS["ties"],
            {"vote": vote, "divisor": divisor, "unit": unit},
        )
        for vote in ("frequency", "total")
        for divisor in ("mass", "count")
        for unit in ("entry", "row")
    },
    "knots_ties, by count": (METHODS["knots_ties"], {"vote": "total", "divisor": "count"}),
}
TILED = [name for name, (method, _) in CASES.items() if not is_linear(method)]
every_case = pytest.mark.parametrize("case", CASES)


def deltas(count: int = 3, shape: tuple[int, int] = (24, 18), rank: int = 4, seed: int = 0) -> Tensor:
    """`(n, o, c)`: unrelated, of low rank and of different sizes."""
    chance = torch.Generator().manual_seed(seed)
    ups = torch.randn(count, shape[0], rank, generator=chance)
    downs = torch.randn(count, rank, shape[1], generator=chance)
    return ups @ downs * torch.linspace(0.5, 2.0, count)[:, None, None]


def hostile() -> dict[str, Tensor]:
    plain = deltas()
    huge = plain.clone()
    huge[1, 3, 5] = 1e15
    sparse = plain * (plain.abs() > 1)
    return {
        "identical": plain[:1].repeat(3, 1, 1),
        "opposite": torch.stack([plain[0], -plain[0], plain[0]]),
        "near-parallel": plain[:1] + 1e-6 * plain,
        "near-antipodal": plain[:1] * torch.tensor([1.0, -1.0, 1e-5])[:, None, None] + 1e-6 * plain,
        "all zero": plain * 0,
        "one of them zero": plain * torch.tensor([1.0, 0.0, 1.0])[:, None, None],
        "one huge entry": huge,
        "disjoint": torch.stack([plain[0].tril(-1), plain[1].triu(1), torch.eye(24, 18)]),
        "mostly zeros": sparse,
        "of rank 1": deltas(rank=1),
        "tiny": plain * 1e-30,
        "one row": deltas(shape=(1, 40)),
        "one column": deltas(shape=(40, 1)),
        "one entry": deltas(shape=(1, 1)),
        "wide": deltas(shape=(3, 200)),
        "tall": deltas(shape=(200, 3)),
    }


every_kind = pytest.mark.parametrize("kind", hostile())


@pytest.mark.parametrize("case", TILED)
@every_kind
def test_tiles_give_the_whole_bit_for_bit(case, kind):
    method, settings = CASES[case]
    given = hostile()[kind]
    whole = merged(method, given, STRENGTHS, **settings)
    for height in (1, 5, 23):
        assert merged(method, given, STRENGTHS, height=height, **settings).equal(whole)


@every_case
@every_kind
def test_what_comes_out_is_finite_and_no_larger_than_what_went_in(case, kind):
    method, settings = CASES[case]
    given = hostile()[kind]
    made = merged(method, given, STRENGTHS, **settings)
    assert made.shape == given.shape[1:]
    assert torch.isfinite(made).all()
    assert float(made.norm()) <= 3 * float(given.flatten(1).norm(dim=1).max()) * (1 + 1e-5)


@every_case
@pytest.mark.parametrize("kind", ["plain", "four", "mostly zeros"])
def test_the_order_of_the_stack_does_not_matter(case, kind):
    method, settings = CASES[case]
    given = {"plain": deltas(), "four": deltas(4), "mostly zeros": hostile()["mostly zeros"]}[kind]
    strengths = torch.tensor([0.75, -0.5, 1.25, 0.5])[: len(given)]
    first = merged(method, given, strengths, **settings)
    for order in list(permutations(range(len(given))))[::3]:
        again = merged(method, given[list(order)], strengths[list(order)], **settings)
        torch.testing.assert_close(again, first, rtol=1e-4, atol=1e-5 * float(first.abs().max()))


@every_case
@pytest.mark.parametrize("factor", [0.25, 4.0, -1.0, -0.5])
def test_a_common_factor_of_the_strengths_comes_out_to_the_methods_degree(case, factor):
    method, settings = CASES[case]
    once = merged(method, deltas(), STRENGTHS, **settings)
    expected = once * (factor if degree(method, settings) else float(np.sign(factor)))
    torch.testing.assert_close(
        merged(method, deltas(), factor * STRENGTHS, **settings), expected, rtol=1e-4, atol=1e-5
    )


@every_case
def test_a_negative_strength_is_a_negated_lora(case):
    method, settings = CASES[case]
    turned = deltas() * torch.sign(STRENGTHS)[:, None, None]
    found = merged(method, deltas(), STRENGTHS, **settings)
    torch.testing.assert_close(
        merged(method, turned, STRENGTHS.abs(), **settings), found, rtol=1e-4, atol=1e-5
    )


@every_case
@pytest.mark.parametrize("factor", [0.25, 8.0])
def test_louder_loras_make_a_louder_result(case, factor):
    method, settings = CASES[case]
    once = merged(method, deltas(), STRENGTHS, **settings)
    torch.testing.assert_close(
        merged(method, factor * deltas(), STRENGTHS, **settings), factor * once, rtol=1e-4, atol=1e-5
    )


@every_case
def test_inputs_are_left_alone(case):
    method, settings = CASES[case]
    given, strengths = deltas(), STRENGTHS.clone()
    merged(method, given, strengths, height=7, **settings)
    assert given.equal(deltas())
    assert strengths.equal(STRENGTHS)


@pytest.mark.parametrize("name", ["ties", "knots_ties"])
def test_a_vote_that_needs_the_whole_target_is_not_settled_by_a_tile(name):
    method = METHODS[name]
    with pytest.raises(ValueError, match="settled"):
        method.merge(deltas(), STRENGTHS, statistics=torch.tensor(0.0))


@every_method
def test_every_choice_of_a_method_is_explained(method):
    given = settable(verb(method))
    assert explained(verb(method)).keys() == given.keys()
    for param in given.values():
        assert param.choice is None or param.default in param.choice.words
        assert isinstance(param.choice, Choice | None)
