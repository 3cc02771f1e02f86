"""Numbers by place: the same however they are asked for, and as good as random."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.core.rng import uniform
from lora_alloy.core.threads import one_thread

NAME = {"seed": 7, "content": "ab" * 32, "target": "blocks.0.attn.to_q"}
KEYS = [NAME, NAME | {"seed": 0}, NAME | {"content": "", "target": ""}, NAME | {"seed": 2**64 - 1}]


def drawn(rows: int, columns: int, start: int = 0, **other: object) -> Tensor:
    return uniform((rows, columns), start=start, **(NAME | other))  # type: ignore[arg-type]


def correlation(first: Tensor, second: Tensor) -> float:
    """As a multiple of its standard deviation if the two have nothing to do with each other."""
    product = (first.double() - 0.5) * (second.double() - 0.5)
    return float(product.sum() * 12 / product.numel() ** 0.5)


def excess(counts: np.ndarray) -> float:
    """χ² of counts that should be equal, as a multiple of its standard deviation above its mean."""
    expected, freedom = counts.mean(), counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def test_a_place_keeps_its_number_forever():
    # Typed in: other numbers would give every recipe with DARE or DELLA other results.
    found = (drawn(2, 3, start=5) * 2**24).int().tolist()
    assert found == [[2146340, 13339190, 4660183], [13256678, 16544657, 12416364]]


def test_numbers_are_multiples_of_their_step_below_one():
    numbers = drawn(64, 4096)
    assert numbers.dtype == torch.float32
    assert float(numbers.min()) >= 0.0 and float(numbers.max()) < 1.0
    assert torch.equal(numbers * 2**24, (numbers * 2**24).round())
    # All bits take part: half of the numbers are odd multiples.
    odd = (numbers * 2**24).long() & 1
    assert abs(float(odd.double().mean()) - 0.5) < 4 * 0.5 / numbers.numel() ** 0.5


@pytest.mark.parametrize("height", [1, 2, 7, 50, 100])
@pytest.mark.parametrize("columns", [1, 33, 5000])
def test_no_tiling_changes_a_number(height, columns):
    whole = drawn(100, columns)
    tiles = [drawn(min(height, 100 - row), columns, start=row) for row in range(0, 100, height)]
    assert torch.equal(torch.cat(tiles), whole)


def test_no_thread_count_changes_a_number():
    several = drawn(200, 3000)
    with one_thread():
        assert torch.equal(drawn(200, 3000), several)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_draws_the_same_bits():
    for shape in [(3, 5), (100, 5000), (1, 100_000)]:
        there = uniform(shape, start=2**33, device="cuda", **NAME)  # type: ignore[arg-type]
        assert torch.equal(there.cpu(), drawn(*shape, start=2**33))


def test_places_beyond_four_thousand_million_have_numbers_of_their_own():
    near = drawn(4, 500)
    for start in (2**32, 2**33, 2**40):
        far = drawn(4, 500, start=start)
        assert int((far == near).sum()) <= 1
        assert abs(correlation(far, near)) < 4


def test_nothing_is_drawn_for_nothing():
    assert drawn(0, 5).shape == (0, 5)
    assert drawn(5, 0).shape == (5, 0)


@pytest.mark.parametrize("name", KEYS, ids=["usual", "seed 0", "no names", "largest seed"])
def test_numbers_are_uniform(name):
    numbers = drawn(512, 1024, **name).flatten()
    count = numbers.numel()
    assert abs(float(numbers.double().mean()) - 0.5) < 4 * (1 / 12 / count) ** 0.5
    assert abs(float(numbers.double().var()) - 1 / 12) < 4 * (1 / 180 / count) ** 0.5
    for bins in (10, 256, 4096):
        assert abs(excess(np.histogram(numbers.numpy(), bins, (0, 1))[0])) < 4
    bits = (numbers * 2**24).int()
    shares = torch.stack([(bits >> place & 1).double().mean() for place in range(24)])
    assert float((shares - 0.5).abs().max()) < 4 * 0.5 / count**0.5


@pytest.mark.parametrize("name", KEYS, ids=["usual", "seed 0", "no names", "largest seed"])
@pytest.mark.parametrize("lag", [1, 2, 64])
def test_neighbours_along_rows_and_columns_are_independent(name, lag):
    numbers = drawn(512, 512, **name)
    for first, second in [
        (numbers[:, lag:], numbers[:, :-lag]),
        (numbers[lag:], numbers[:-lag]),
        (numbers[lag:, lag:], numbers[:-lag, :-lag]),
    ]:
        assert abs(correlation(first, second)) < 4
        pairs = np.histogram2d(first.flatten().numpy(), second.flatten().numpy(), 16, [[0, 1], [0, 1]])[0]
        assert abs(excess(pairs)) < 4


@pytest.mark.parametrize("name", KEYS, ids=["usual", "seed 0", "no names", "largest seed"])
def test_sums_over_rows_and_columns_vary_as_chance_does(name):
    numbers = drawn(1024, 1024, **name).double() - 0.5
    for axis in (0, 1):
        means = numbers.mean(axis) * (12 * 1024) ** 0.5  # each of variance 1
        assert abs(float(means.square().mean()) - 1) < 4 * (2 / 1024) ** 0.5
        assert float(means.abs().max()) < 5


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 8},
        {"seed": -7},
        {"seed": 7 + 2**64},
        {"content": "ab" * 31 + "ac"},
        {"target": "blocks.0.attn.to_k"},
        {"target": "blocks.1.attn.to_q"},
        {"start": 1},
    ],
    ids=str,
)
def test_neighbouring_names_have_nothing_in_common(other):
    mine, theirs = drawn(256, 1024), drawn(256, 1024, **other)
    if "start" in other:
        assert torch.equal(theirs[:-1], mine[1:])
        return
    assert abs(correlation(mine, theirs)) < 4
    # Equal numbers are as rare as chance makes them: one in 2²⁴.
    assert int((mine == theirs).sum()) <= 3
    pairs = np.histogram2d(mine.flatten().numpy(), theirs.flatten().numpy(), 16, [[0, 1], [0, 1]])[0]
    assert abs(excess(pairs)) < 4


def test_no_two_columns_or_rows_are_alike():
    """A word that two of them shared would repeat all of their numbers."""
    numbers = (drawn(3, 60_000) * 2**24).long()
    assert len(torch.unique((numbers[0] << 24) | numbers[1])) == 60_000
    # Of so many rows some ten pairs share their first word.
    numbers = (drawn(300_000, 3) * 2**24).long()
    assert len(torch.unique((numbers[:, 0] << 24) | numbers[:, 1])) == 300_000
