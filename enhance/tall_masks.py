"""TALL-masks: what one LoRA pushes harder than all others together stays its own (Wang et al., arXiv:2405.07813).

Source: seed, Merge Algorithms: TALL-Masks. The entries are taken out before the merge and put back after it, at their
strength. Departure of seed and us from the paper's use, which drops such entries: the seed protects them. Around a
combination that changes nothing but the strengths, so it acts around element-wise methods only (`design.md` §3).
"""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Span

Restore = Callable[[Tensor], Tensor]


def enhance(
    deltas: Tensor, strengths: Tensor, *, dominance: Annotated[float, Span(0.1, 10.0)] = 1.0
) -> tuple[Tensor, Restore]:
    """Take out of every LoRA the entries that are its own.

    Args:
        deltas: `(n, t, c)`.
        strengths: `(n,)`.
        dominance: how much more than all others together a LoRA must push an entry. Below 1, the strongest owns it.

    Returns:
        The deltas without those entries, and what adds them to a merged `(t, c)`, at their strengths.
    """
    pushes = deltas * strengths[:, None, None]
    sizes = pushes.abs()
    top, owner = sizes.max(0)
    # Two that push alike own nothing, whatever comes first; nor is a push of nothing anybody's.
    is_alone = (sizes == top).sum(0) == 1
    is_owned = is_alone & (top > 0) & (top >= dominance * (sizes.sum(0) - top))
    own = is_owned & (torch.arange(len(deltas), device=deltas.device)[:, None, None] == owner)
    given_back = torch.where(own, pushes, 0).sum(0)
    return torch.where(own, 0, deltas), lambda merged: merged + given_back
