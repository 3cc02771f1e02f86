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


def uniform(
    shape: tuple[int, ...],
    *,
    seed: int,
    content: str,
    target: str,
    start: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Numbers in [0, 1) for some rows of a matrix, each by its own place: the same for any tiling and device.

    A place is hashed by its row and its column, with two rounds of a 32-bit finaliser (Wellons' lowbias32) and a key
    of the names between them.

    Args:
        shape: `(t, c)`.
        seed: the user's.
        content: the hash of the file that the draw is for.
        target: what it is for in that file.
        start: the first row.
        device: where the numbers are needed.

    Returns:
        `(t, c)` float32, multiples of 2⁻²⁴.
    """
    digest = hashlib.blake2b(f"{seed}\0{content}\0{target}".encode(), digest_size=8).digest()
    first, second = (int(key) for key in np.frombuffer(digest, "<i4"))
    rows = torch.arange(start, start + shape[0], device=device, dtype=torch.int32)
    columns = torch.arange(shape[1], device=device, dtype=torch.int32)
    rows = _mixed(rows ^ first)
    places = rows[:, None] + _mixed(columns ^ second)[None]
    places = _mixed(places)
    return places.bitwise_and_(0xFFFFFF).float().mul_(2.0**-24)


def _mixed(bits: Tensor) -> Tensor:
    """A bijection of 32-bit numbers that lets every bit depend on every other; int32, wrapping around."""
    bits = bits ^ _right(bits, 16)
    bits = bits * 0x7FEB352D
    bits.bitwise_xor_(_right(bits, 15))
    bits.mul_(0x846CA68B - (1 << 32))
    return bits.bitwise_xor_(_right(bits, 16))


def _right(bits: Tensor, places: int) -> Tensor:
    """A shift to the right that moves in zeros, where torch's repeats the sign."""
    return (bits >> places).bitwise_and_((1 << (32 - places)) - 1)
