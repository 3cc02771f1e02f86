"""TALL-masks by hand, by the definition entry by entry, and around every merge method."""

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_alloy.enhance import tall_masks
from lora_alloy.merging.methods import METHODS
from lora_alloy_testing import dense_formulas
from lora_alloy_testing.whole_or_tiled import merged

STRENGTHS = torch.tensor([0.75, -0.5, 1.25])


def deltas(seed: int = 0, step: float = 0.0) -> Tensor:
    """`(3, 8, 9)`; with a step, on a grid, so that many entries are alike."""
    given = torch.randn(3, 8, 9, generator=torch.Generator().manual_seed(seed))
    return (given / step).round() * step if step else given


def test_an_entry_belongs_to_who_outweighs_all_others_together():
    given = torch.tensor(
        [[[5.0, 3.0, 2.0, 0.0, 0.0]], [[1.0, -2.0, 2.0, 0.0, 0.0]], [[-1.0, 2.0, 0.0, 0.0, 4.0]]]
    )
    left, restore = tall_masks.enhance(given, torch.ones(3))
    # 5 against 2; 3 against 4, nobody's; 2 against 2, nobody's; nothing, nobody's; 4 alone.
    assert left[:, 0].tolist() == [[0, 3, 2, 0, 0], [1, -2, 2, 0, 0], [-1, 2, 0, 0, 0]]
    assert restore(torch.zeros(1, 5)).tolist() == [[5, 0, 0, 0, 4]]


def test_an_entry_that_just_reaches_the_others_is_owned():
    left, _ = tall_masks.enhance(torch.tensor([[[3.0]], [[1.0]], [[-2.0]]]), torch.ones(3))
    assert left.flatten().tolist() == [0, 1, -2]


def test_strengths_count_and_owned_entries_come_back_at_theirs():
    given = torch.tensor([[[1.0, 4.0]], [[2.0, 1.0]]])
    left, restore = tall_masks.enhance(given, torch.tensor([0.5, -1.0]))
    assert left[:, 0].tolist() == [[1, 0], [0, 1]]
    assert restore(torch.ones(1, 2)).tolist() == [[-1.0, 3.0]]


def test_dominance_asks_for_more_or_for_less():
    given = torch.tensor([[[3.0]], [[2.0]], [[2.0]]])
    assert tall_masks.enhance(given, torch.ones(3), dominance=0.75)[0].flatten().tolist() == [0, 2, 2]
    assert tall_masks.enhance(given, torch.ones(3), dominance=0.8)[0].equal(given)


def test_two_equal_ones_own_nothing_however_little_is_asked():
    given = torch.tensor([[[3.0]], [[-3.0]], [[1.0]]])
    assert tall_masks.enhance(given, torch.ones(3), dominance=0.1)[0].equal(given)


@pytest.mark.parametrize("step", [0.0, 0.5])
@pytest.mark.parametrize("dominance", [0.25, 1.0, 2.0])
def test_masks_are_those_of_the_definition_entry_by_entry(step, dominance):
    given = deltas(step=step)
    masks = dense_formulas.own_entries(list(given.double().numpy()), STRENGTHS.tolist(), dominance)
    left, restore = tall_masks.enhance(given, STRENGTHS, dominance=dominance)
    np.testing.assert_array_equal(left, np.where(masks, 0, given))
    expected = sum(
        np.where(m, w * d, 0) for m, w, d in zip(masks, STRENGTHS.tolist(), given.numpy(), strict=True)
    )
    np.testing.assert_allclose(restore(torch.zeros(8, 9)), expected, rtol=1e-6)


@pytest.mark.parametrize("step", [0.0, 0.5])
def test_owners_do_not_depend_on_the_order_or_the_tile(step):
    given = deltas(step=step)
    left, restore = tall_masks.enhance(given, STRENGTHS)
    back = restore(torch.zeros(8, 9))
    for order in map(list, permutations(range(3))):
        again, restored = tall_masks.enhance(given[order], STRENGTHS[order])
        assert again.equal(left[order])
        assert restored(torch.zeros(8, 9)).equal(back)
    part, restored = tall_masks.enhance(given[:, 3:5], STRENGTHS)
    assert part.equal(left[:, 3:5])
    assert restored(torch.zeros(2, 9)).equal(back[3:5])


def test_around_a_weighted_sum_nothing_changes():
    given = deltas()
    left, restore = tall_masks.enhance(given, STRENGTHS)
    assert not left.equal(given)
    found = restore(merged(METHODS["weighted_sum"], left, STRENGTHS))
    torch.testing.assert_close(found, merged(METHODS["weighted_sum"], given, STRENGTHS))


@pytest.mark.parametrize("name", METHODS)
def test_around_any_method_owned_entries_are_at_full_strength_where_nobody_else_is(name):
    given = deltas()
    given[1:, :4] = 0
    left, restore = tall_masks.enhance(given, STRENGTHS)
    found = restore(merged(METHODS[name], left, STRENGTHS))
    rows = slice(0, 4)
    if name == "knots_ties":  # entries of a basis, not of the target: what is zero there is so to rounding
        torch.testing.assert_close(found[rows], 0.75 * given[0, rows], rtol=0, atol=1e-5)
    else:
        assert found[rows].equal(0.75 * given[0, rows])


def test_inputs_are_left_alone():
    given, strengths = deltas(), STRENGTHS.clone()
    left, restore = tall_masks.enhance(given, strengths)
    base = torch.zeros(8, 9)
    restore(base)
    left += 1
    assert given.equal(deltas())
    assert strengths.equal(STRENGTHS)
    assert not base.any()
