"""DARE: drop entries at random, and scale the rest up to make up for it.

Source: seed, Sparsification Methods: DARE, with its dampening. DAREx (arXiv:2410.09344) puts another factor in the
place of `1 / density` and fits it to data; `1 / density^(1 − dampening)` is the seed's form, without data.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Span

PAPER = "Yu et al. 2023, arXiv:2311.03099"


def sparsify(
    delta: Tensor,
    *,
    density: Annotated[float, Span(0.01, 1.0)] = 0.7,
    dampening: Annotated[float, Span(0.0, 1.0)] = 0.0,
    uniform: Tensor,
) -> Tensor:
    """Keep each entry with probability `density`, times `1 / density^(1 − dampening)`.

    Without dampening the expectation is `delta` itself, with it `density^dampening` of that.

    Args:
        delta: `(t, c)`.
        density: expected share of the entries that stay.
        dampening: from 0, where the rest makes up for what was dropped, to 1, where nothing does.
        uniform: `(t, c)`, numbers in [0, 1).
    """
    return torch.where(uniform < density, delta * density ** (dampening - 1.0), 0)
