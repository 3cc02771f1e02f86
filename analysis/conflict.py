"""Sign conflict: how often two deltas push one entry of a weight in opposite directions.

The share is taken from a block of rows × columns, which 64 rows settle to a fraction of a per cent. Two
Gaussian deltas of cosine ρ disagree on `arccos(ρ) / π` of all signs by chance alone, so unrelated LoRAs sit
near one half and only the excess over that baseline says something; opposition, ρ < 0, is a finding of its
own (`design.md` §3, `spec/engine.md` §4.2).
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..core.rng import spread
from ..lora.factors import Delta

ROWS = 64
COLUMNS = 512


def sign_conflict(deltas: Sequence[Delta], name: str) -> Tensor:
    """The share of entries, among those that both change, on which two deltas have opposite signs.

    Args:
        deltas: of one target, at strength 1.
        name: the target's; it decides which block is looked at.

    Returns:
        `(n, n)` float64, 0 on the diagonal and for pairs that share no entry.
    """
    rows = spread(ROWS, deltas[0].shape[0], name)
    columns = spread(COLUMNS, prod(deltas[0].shape[1:]), name)
    signs = [torch.sign(delta.block(rows, columns)).flatten() for delta in deltas]
    stacked = torch.stack(signs)
    agreement = (stacked @ stacked.T).double()
    touched = stacked.abs()
    both = (touched @ touched.T).double()
    share = torch.where(both > 0, (both - agreement) / (2 * both.clamp(min=1)), 0)
    return share.fill_diagonal_(0)


def baseline(cosine: Tensor) -> Tensor:
    """The conflict that chance alone gives two Gaussian deltas of this cosine."""
    return torch.arccos(cosine.clamp(-1, 1)) / torch.pi
