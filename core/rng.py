"""Chance by name, not by order: what is drawn depends on what it is for, never on what was drawn before."""

import hashlib

import numpy as np
import torch
from torch import Tensor

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio: multiples of it spread evenly
_HALF = np.uint64(32)
_COLUMN = np.uint32(0x9E3779B1)  # odd, so that no two columns get the same word
_BLOCK = 1 << 16  # numbers that are hashed at a time on a CPU: with their copy they stay in its cache
# (shift, factor): the steps of a 32-bit finaliser in which every input bit turns every output bit half of the time.
_STEPS = ((16, 0x21F0AAAD), (15, 0xD35A2D97 - (1 << 32)), (15, 1))


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
    shape: tuple[int, int],
    *,
    seed: int,
    content: str,
    target: str,
    start: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Numbers in [0, 1) for some rows of a target, each by its own place: the same for any tiling and device.

    A counter, not a stream: the names give a key, the key and a row two words, and a number is the word of its
    column, hashed with one of them and hashed again with the other. Rows and columns never share a counter, so
    no target is too large, and rows or keys that agree in one word still have nothing to do with each other.

    Args:
        shape: `(t, c)`; tiles have all columns of the target.
        seed: the user's, of any size.
        content: the hash of the file that is drawn for.
        target: what in that file.
        start: which row of the target is the first one here.
        device: where the numbers are needed.

    Returns:
        `(t, c)` float32, multiples of 2⁻²⁴.
    """
    key = hashlib.blake2b(f"{seed}\0{content}\0{target}".encode(), digest_size=8).digest()
    first, second = (word.to(device)[:, None] for word in _row_words(key, start, shape[0]))
    with np.errstate(over="ignore"):
        columns = np.arange(shape[1], dtype=np.uint32) * _COLUMN
    words = torch.from_numpy(columns.view(np.int32)).to(device)
    numbers = torch.empty(shape, device=device)
    height = max(1, _BLOCK // max(1, shape[1])) if numbers.device.type == "cpu" else max(1, shape[0])
    for row in range(0, shape[0], height):
        rows = slice(row, row + height)
        bits = words ^ first[rows]
        spare = torch.empty_like(bits)
        _mix(bits, spare)
        _mix(bits.add_(second[rows]), spare)
        numbers[rows] = _shifted(bits, 8, spare)
    return numbers.mul_(2.0**-24)


def _row_words(key: bytes, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Two int32 words `(t,)` for each row: the halves of a 64-bit hash (the finaliser of SplitMix64)."""
    with np.errstate(over="ignore"):
        rows = np.arange(start, start + count, dtype=np.uint64) * _STEP + np.frombuffer(key, "<u8")
        rows = (rows ^ (rows >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        rows = (rows ^ (rows >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    rows ^= rows >> np.uint64(31)
    halves = (rows >> _HALF).astype(np.uint32), rows.astype(np.uint32)
    return torch.from_numpy(halves[0].view(np.int32)), torch.from_numpy(halves[1].view(np.int32))


def _mix(bits: Tensor, spare: Tensor) -> None:
    """A bijection of 32-bit numbers, in place; products wrap around."""
    for shift, factor in _STEPS:
        bits.bitwise_xor_(_shifted(bits, shift, spare))
        if factor != 1:
            bits.mul_(factor)


def _shifted(bits: Tensor, places: int, spare: Tensor) -> Tensor:
    """The bits moved right, in `spare`; what moves in is 0, where int32 alone would repeat the sign."""
    torch.bitwise_right_shift(bits, places, out=spare)
    return spare.bitwise_and_((1 << (32 - places)) - 1)
