"""The automatic blend's factors: at the norm that is wanted, and without a leap where LoRAs oppose each other."""

import pytest
import torch

from lora_alloy.merging.balance import balanced


def opposed(loud: float, count: int = 10) -> torch.Tensor:
    """The Gram matrix of some LoRAs of one direction and norm 1, and a loud one straight against them."""
    along = torch.cat([torch.ones(count), torch.tensor([-loud])]).double()
    across = torch.eye(count + 1, dtype=torch.float64) * 1e-4
    return torch.outer(along, along) + across


@pytest.mark.parametrize("loud", [11.99, 12.01, 12.5, 14.0, 20.0])
def test_a_blend_hardly_louder_than_wanted_is_hardly_turned_down(loud):
    gram, wanted = opposed(loud), 2.0
    factors = balanced(gram, wanted)
    norm = float((factors @ gram @ factors).sqrt())
    assert norm == pytest.approx(min(wanted, float(gram.sum().sqrt())), rel=1e-6)
    assert float(factors[:-1].min()) == 1.0
    assert float(factors[-1]) == pytest.approx(min(1.0, 12.0 / loud), abs=1e-3)


@pytest.mark.parametrize("factor", [0.1, 7.0])
def test_strengths_that_grow_alike_keep_the_factors(factor):
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 40, generator=chance, dtype=torch.float64) * torch.linspace(1, 30, 5)[:, None]
    gram = rows @ rows.T
    wanted = float(gram.diagonal().sqrt().mean())
    once, again = balanced(gram, wanted), balanced(gram * factor**2, wanted * factor)
    torch.testing.assert_close(again, once, rtol=1e-9, atol=0)
