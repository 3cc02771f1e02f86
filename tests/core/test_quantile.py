"""The k-th largest magnitude, against sorting everything; exact, whatever the numbers and the tiles are."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.core.quantile import kept_count, magnitude_thresholds
from lora_alloy.core.threads import one_thread

SMALLEST = 2.0**-149
LARGEST = float(torch.finfo(torch.float32).max)


def scattered(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def hostile() -> dict[str, Tensor]:
    """Matrices `(8, 50)` that a histogram may go wrong on."""
    plain = scattered(8, 50)
    one_huge = plain.clone()
    one_huge[3, 7] = -LARGEST
    halves = torch.where(plain > 0, plain, 0)
    subnormal = (plain * 100).round() * SMALLEST
    # Three neighbours on each side of where the upper bits of a float32 turn over.
    bits = torch.arange(0x3F800000 - 200, 0x3F800000 + 200, dtype=torch.int32)
    signs = torch.where(torch.arange(400) % 2 == 0, 1.0, -1.0)
    return {
        "plain": plain,
        "one huge entry": one_huge,
        "half of it zero": halves,
        "all zero": torch.zeros(8, 50),
        "negative zeros": -torch.zeros(8, 50),
        "all equal": torch.full((8, 50), -0.3),
        "two values": torch.where(plain > 0, 0.25, -0.5),
        "subnormal": subnormal,
        "the smallest and the largest": torch.where(plain > 0, SMALLEST, LARGEST),
        "over 70 powers of ten": torch.sign(plain) * 10.0 ** (plain * 12).clamp(-35, 35),
        "infinite": torch.where(plain > 1, float("inf"), plain),
        "across a bin's edge": (bits.view(torch.float32) * signs).reshape(8, 50),
    }


@pytest.mark.parametrize("values", hostile().values(), ids=hostile())
def test_every_rank_is_the_one_that_sorting_gives(values):
    expected = np.sort(np.abs(values.numpy().reshape(-1)))[::-1]
    for keep in (1, 2, 3, 57, 199, 200, 201, 333, 399, 400):
        found = magnitude_thresholds(lambda: iter(values[None].split(3, 1)), 400, keep)
        assert found == [float(expected[keep - 1])]
        assert int((values.abs() >= found[0]).sum()) >= keep > int((values.abs() > found[0]).sum())


def test_an_example_worked_out_by_hand():
    tile = torch.tensor([[3.0, -7.0, 0.5], [0.0, -0.5, 2.0]])
    found = [magnitude_thresholds(lambda: iter([tile[None]]), 6, keep) for keep in range(1, 7)]
    assert found == [[7.0], [3.0], [2.0], [0.5], [0.5], [0.0]]


def test_several_matrices_are_ranked_apart():
    values = torch.stack([scattered(30, 40), 1e-6 * scattered(30, 41)[:, 1:], torch.zeros(30, 40)])
    found = magnitude_thresholds(lambda: iter(values.split(7, 1)), 1200, 300)
    assert found == values.abs().reshape(3, -1).sort(descending=True).values[:, 299].tolist()


@pytest.mark.parametrize("height", [1, 5, 64, 700])
def test_neither_tiles_nor_threads_change_a_threshold(height):
    values = scattered(2, 700, 801)  # more than one block
    count = 700 * 801
    several = magnitude_thresholds(lambda: iter(values.split(height, 1)), count, count // 3)
    with one_thread():
        assert magnitude_thresholds(lambda: iter([values]), count, count // 3) == several
    assert several == values.abs().reshape(2, -1).kthvalue(count - count // 3 + 1).values.tolist()


def test_turned_and_cut_tiles_are_read_as_they_are():
    values = scattered(1, 40, 30)
    straight = magnitude_thresholds(lambda: iter([values]), 1200, 77)
    assert magnitude_thresholds(lambda: iter([values.transpose(1, 2)]), 1200, 77) == straight
    assert magnitude_thresholds(lambda: iter([values[..., :11], values[..., 11:]]), 1200, 77) == straight


def test_tiles_are_left_as_they_were():
    values = scattered(1, 4, 5)
    before = values.clone()
    magnitude_thresholds(lambda: iter([values]), 20, 3)
    assert torch.equal(values, before)


@pytest.mark.parametrize(("count", "keep"), [(20, 0), (20, 21), (0, 1), (19, 3), (21, 3)])
def test_a_rank_or_a_count_that_cannot_be_is_refused(count, keep):
    values = scattered(1, 4, 5)
    with pytest.raises(ValueError, match="values"):
        magnitude_thresholds(lambda: iter([values]), count, keep)
    with pytest.raises(ValueError):
        magnitude_thresholds(lambda: iter([]), count, keep)


@pytest.mark.parametrize(
    ("count", "density", "kept"), [(10, 0.5, 5), (10, 0.26, 3), (10, 0.01, 1), (1, 0.5, 1), (10, 1.0, 10)]
)
def test_a_density_keeps_the_nearest_count_and_never_nothing(count, density, kept):
    assert kept_count(count, density) == kept
