"""`conflict_mode`: a LoRA that acts only where the stack agrees with it, or only where it does not.

Departures from `spec/engine.md` §7.2, by its own recommendation: votes weigh what they push, `w · Δ`, and a tie is
a contested place: `low_conflict` leaves it out and `high_conflict` keeps it, where counting ties as positive kept
one sign only.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.device import total
from .work import HIGH, LOW


def masked(deltas: Tensor, strengths: Tensor, modes: Sequence[str], *, by_row: bool = False) -> Tensor:
    """The deltas, zero where their mode does not let them act.

    Args:
        deltas: `(n, t, c)`; all of them vote, also those that are not masked.
        strengths: `(n,)`.
        modes: `all`, `low_conflict` or `high_conflict`, one a LoRA.
        by_row: whole rows vote, by their sums.
    """
    pushes = deltas * strengths[:, None, None]
    votes = pushes.sum(2, keepdim=True) if by_row else pushes
    # Added up in the order of the files' content, so a tie is one in any order of the stack.
    elected = total(votes, 0).to(votes)
    agrees = torch.sign(pushes) * torch.sign(elected) > 0
    kept = deltas.clone()
    for place, mode in enumerate(modes):
        if mode == LOW:
            kept[place].masked_fill_(~agrees[place], 0)
        elif mode == HIGH:
            kept[place].masked_fill_(agrees[place], 0)
    return kept
