"""DELLA: drop entries at random, small ones more often, and scale each of the rest up by its own odds.

MAGPRUNE of arXiv:2406.11617. Source: seed, Sparsification Methods: DELLA. Its sentence says that low magnitudes are
dropped more often, as the paper does; its formula ranks them the other way round and drops half as much as asked.
We take the sentence and the paper's `1 − d − ε/2 + ε · rank / c`, with two departures that make the share that stays
the density itself: the rank is counted to the middle of an entry, `rank + ½`, and `ε` is never so wide that a
probability would have to be clamped.
"""

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..core.params import Span

PAPER = "Deep et al. 2024, arXiv:2406.11617"
WIDEST = 0.3  # between the odds of the largest entry of a row and those of the smallest
_STEPS = 1 << 24  # of `uniform` between 0 and 1


def sparsify(
    delta: Tensor,
    *,
    density: Annotated[float, Span(0.01, 1.0)] = 0.7,
    uniform: Tensor,
) -> Tensor:
    """Keep each entry with a probability that falls with its rank in its row, divided by that probability.

    The expectation is `delta` itself. At densities below 0.15 the smallest entries of a row stay almost never, and
    then count for much.

    Args:
        delta: `(t, c)`; a vector is one row.
        density: expected share of the entries of each row that stay.
        uniform: `(t, c)`, numbers in [0, 1).
    """
    kept = chances(delta.shape[1], density).to(delta.device)
    kept = torch.empty_like(delta).scatter_(1, _ascending(delta), kept.expand_as(delta))
    return torch.where(uniform < kept, delta / kept, 0)


def chances(count: int, density: float) -> Tensor:
    """The probabilities to stay, `(count,)`, from the smallest entry of a row to its largest; their mean is `density`.

    They are rounded to what `uniform` can tell apart, so that dividing by them leaves no bias.
    """
    width = min(WIDEST, 2 * min(density, 1 - density))
    ranks = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    kept = density - width / 2 + width * ranks
    return (kept * _STEPS).round().clamp(1, _STEPS).div(_STEPS).float()


def _ascending(delta: Tensor) -> Tensor:
    """The columns of each row from its smallest magnitude to its largest, `(t, c)`; equal ones in their order.

    Magnitude and column are one integer, so any sort gives the same; on a CPU NumPy's is the fastest by far.
    """
    columns = torch.arange(delta.shape[1], device=delta.device)
    keys = ((delta.contiguous().view(torch.int32) & 0x7FFFFFFF).long() << 32) | columns
    if keys.device.type == "cpu":
        keys = torch.from_numpy(np.sort(keys.numpy(), axis=1))
    else:
        keys = keys.sort(dim=1).values
    return keys & 0xFFFFFFFF
