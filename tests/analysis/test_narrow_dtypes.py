"""Deltas of every form are measured in every dtype that a file may store, and at the ends of what those hold."""

import pytest
import torch

from lora_alloy.analysis.similarity import dot
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.full import Dense, Kron

ONES = torch.ones(4, 4)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.float64])
def test_dot_products_in_narrow_dtypes_are_those_of_the_numbers(dtype):
    forms = (
        LowRank(ONES[:, :1].to(dtype), ONES[:1].to(dtype), 1.0, (4, 4)),
        Kron(ONES[:2, :2].to(dtype), ONES[:2, :2].to(dtype), 1.0, (4, 4)),
        Dense(ONES.to(dtype), 1.0, (4, 4)),
    )
    assert [dot(one, other) for one in forms for other in forms] == [16.0] * 9


def test_sums_beyond_float32_are_those_of_float64():
    up, down = torch.full((4, 1), 2.0**120), torch.full((1, 4), 2.0**-10)
    thin, whole = LowRank(up, down, 1.0, (4, 4)), Dense(up @ down, 1.0, (4, 4))
    assert [dot(one, other) for one in (thin, whole) for other in (thin, whole)] == [16 * 2.0**220] * 4
