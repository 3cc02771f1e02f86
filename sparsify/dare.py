"""DARE (Yu et al., arXiv:2311.03099): drop entries at random, and scale the rest up to make up for it.

The dampening is the seed's form of DAREx (arXiv:2410.09344): the factor on what stays is `1 / density^(1 − λ)`.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Span


def sparsify(
    delta: Tensor,
    *,
    density: Annotated[float, Span(0.01, 1.0)] = 0.7,
    dampening: Annotated[float, Span(0.0, 1.0)] = 0.0,
    uniform: Tensor,
) -> Tensor:
    """Keep each entry with probability `density`; without dampening the expectation is `delta` itself.

    Args:
        delta: `(t, c)`.
        density: expected share of the entries that stay.
        dampening: 0 divides what stays by `density`, 1 leaves it as it is.
        uniform: `(t, c)`, numbers in [0, 1).
    """
    return torch.where(uniform < density, delta * density ** (dampening - 1.0), 0)
