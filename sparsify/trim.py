"""Trim: keep the largest entries of a delta, the first step of TIES.

Source: seed, Merge Algorithms: TIES, step 1. The threshold is that of one target; the paper's is one for the whole
model, which starves the targets that a LoRA changes least. It is a magnitude that occurs, not the interpolated
quantile of the seed: which entries stay is the same but for a share of one entry.
"""

from typing import Annotated

import numpy as np
from torch import Tensor
from torch.nn.functional import hardshrink

from ..core.params import Span

PAPER = "Yadav et al. 2023, arXiv:2306.01708"


def sparsify(delta: Tensor, *, density: Annotated[float, Span(0.01, 1.0)] = 0.5, threshold: float) -> Tensor:
    """Keep the entries whose magnitude is at least `threshold`, and do not scale them up.

    Not unbiased, unlike DARE and DELLA: what goes is small, and nothing makes up for it.

    Args:
        delta: `(t, c)`.
        density: share of the entries that stay, to the nearest entry; more only where magnitudes are equal.
        threshold: the magnitude that so many entries of the target reach.
    """
    # `hardshrink` zeroes up to its number and not from it on; a mask takes ten times as long on a CPU.
    return hardshrink(delta, float(np.nextafter(np.float32(threshold), np.float32(-1))))
