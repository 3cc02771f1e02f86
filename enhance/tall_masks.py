"""TALL-masks: what one LoRA changes more than all others together stays its own.

Source: seed, Quality Enhancements: TALL-Masks. Such entries are taken out before the merge and put back after it, at
the LoRA's strength. (The paper compares with the sum of the others, signs included, and drops what is one LoRA's own;
the seed compares magnitudes, and protects it.) Around a sum this changes nothing.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from ..core.device import total
from ..core.params import Span

PAPER = "Wang et al. 2024, arXiv:2405.07813"


def enhance(
    deltas: Tensor, strengths: Tensor, *, dominance: Annotated[float, Span(0.1, 10.0)] = 1.0
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Take out of every LoRA the entries that are its own.

    Args:
        deltas: `(n, t, c)`.
        strengths: `(n,)`.
        dominance: how many times the magnitudes of all others together an entry's owner must reach. An entry has one
            owner at most: the strongest, and none where two are the strongest or all are 0.

    Returns:
        The deltas without those entries, and what adds them to a merged `(t, c)`, at their strengths.
    """
    pushes = deltas * strengths[:, None, None]
    sizes = pushes.abs()
    largest = sizes.amax(0)
    # Double precision adds what is single exactly: who owns an entry depends on no order.
    others = total(sizes, 0)
    highest = largest.to(others.device)
    is_owned = ((highest > 0) & (highest >= dominance * (others - highest))).to(largest.device)
    own = (sizes == largest) & is_owned
    own &= own.sum(0) == 1
    given_back = torch.where(own, pushes, 0).sum(0)
    return torch.where(own, 0, deltas), lambda merged: merged + given_back
