"""Chance by name, not by order: what is drawn depends on what it is for, never on what was drawn before."""

import hashlib

import torch
from torch import Tensor

_STEP = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio: multiples of it spread evenly
_WRAP = (1 << 64) - 1


def spread(count: int, size: int, name: str) -> Tensor:
    """At most `count` distinct places below `size`, spread evenly from a start that `name` decides.

    Returns:
        `(count,)` int64, ascending; all places if there are not more.
    """
    if count >= size:
        return torch.arange(size)
    at = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    found: set[int] = set()
    while len(found) < count:
        found.add((at * size) >> 64)
        at = (at + _STEP) & _WRAP
    return torch.tensor(sorted(found))
