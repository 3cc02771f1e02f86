"""DELLA's MAGPRUNE (Deep et al., arXiv:2406.11617): drop small entries more often than large ones.

Ruling: the paper's probabilities, and the seed's sentence "low magnitude is dropped more often", where the seed's
formula is the other way round. `ε` is as wide as leaves every probability within [0, 1], so that the kept share is
the density.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Span

WIDEST = 0.3


def sparsify(delta: Tensor, *, density: Annotated[float, Span(0.01, 1.0)] = 0.7, uniform: Tensor) -> Tensor:
    """Keep each entry with a probability that falls with its rank in its row, and divide it by that.

    The expectation is `delta` itself, and the mean probability of a row is `density`.

    Args:
        delta: `(t, c)`.
        density: expected share of the entries that stay.
        uniform: `(t, c)`, numbers in [0, 1).
    """
    if density >= 1.0:
        return delta.clone()
    keep = kept_share(delta, density)
    return torch.where(uniform < keep, delta / keep, 0)


def kept_share(delta: Tensor, density: float) -> Tensor:
    """The probability with which each entry stays, `(t, c)`: from `density + ε/2` for the largest of a row down."""
    columns = delta.shape[1]
    width = min(WIDEST, 2 * min(density, 1.0 - density))
    # Equal magnitudes go by their place, so that the same row always gives the same ranks.
    order = delta.abs().argsort(dim=1, descending=True, stable=True)
    places = torch.arange(columns, device=delta.device, dtype=torch.float32)
    # The middle of a rank's share, not its edge: the mean over a row is then the density exactly.
    falling = density + width / 2 - width * (places + 0.5) / columns
    return torch.empty_like(delta).scatter_(1, order, falling.expand_as(delta).contiguous())
