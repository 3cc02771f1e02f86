"""Chance by name, not by order: what is drawn depends on what it is for, never on what was drawn before."""

import hashlib

import numpy as np
import torch
from torch import Tensor

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio: multiples of it spread evenly
_HALF = np.uint64(32)


def spread(count: int, size: int, name: str) -> Tensor:
    """Places below `size`, spread evenly from a start that `name` decides.

    Args:
        count: how many; a few less come out where two would fall together.
        size: all of them, if there are not more than `count`.
        name: what the draw is for.

    Returns:
        int64, distinct and ascending.
    """
    if count >= size:
        return torch.arange(size)
    start = np.frombuffer(hashlib.blake2b(name.encode(), digest_size=8).digest(), "<u8")
    with np.errstate(over="ignore"):
        walk = start + _STEP * np.arange(count, dtype=np.uint64)
    places = ((walk >> _HALF) * np.uint64(size)) >> _HALF
    return torch.from_numpy(np.unique(places).astype(np.int64))
