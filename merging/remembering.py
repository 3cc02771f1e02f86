"""Deltas multiplied out by somebody who keeps them: the same bits, made once instead of in every pass.

Who that is, and where the values stay, is not known here: an engine without a cache runs the same way. Only the CPU's
tiles are kept: a GPU makes them faster than the bus brings them, and may round by where in memory they lie.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from torch import Tensor

from ..core.hashing import tensors_sha256
from ..lora.entries import Contribution, Group
from ..lora.factors import Delta, LowRank
from ..lora.full import Dense, Kron
from ..lora.stack import Stack
from .tiles import Tiles

Remember: TypeAlias = Callable[[str, str, tuple[int, int], Callable[[], Iterator[Tensor]]], Tensor | None]
"""`(key, form, (rows, columns), tiles)` → the rows that `tiles` makes, joined, float32; None to make them anew."""


def remembered(
    stack: Stack,
    group: Group,
    places: Sequence[int],
    deltas: Sequence[Delta],
    remember: Remember,
) -> list[Delta]:
    """The deltas of one target, dense where they were remembered; equal, bit for bit, tile by tile.

    Args:
        stack: the stack.
        group: the target.
        places: which of its contributions.
        deltas: what these bring.
        remember: whoever keeps them.
    """
    made = []
    for place, delta in zip(places, deltas, strict=True):
        matrix = None
        if isinstance(delta, LowRank | Kron) and len(delta.shape) > 1:
            key = _key(stack, group.contributions[place], delta)
            size = (delta.shape[0], delta.flat_width)

            def tiles(delta: Delta = delta) -> Iterator[Tensor]:
                return (tile[0] for tile in Tiles([delta]).walk())

            matrix = remember(key, _form(delta), size, tiles)
        made.append(delta if matrix is None else Dense(matrix, 1.0, delta.shape))
    return made


def _key(stack: Stack, one: Contribution, delta: Delta) -> str:
    """What a delta depends on: the file's bytes, what is taken of them; never a name of a file, or a strength."""
    entry, module = stack.entries[one.entry], one.module
    parts: list[object] = [
        entry.file.sha256,
        module.key,
        module.format,
        module.gain,
        one.swap_halves,
        one.part,
        one.wider,
    ]
    if stack.clean is not None or module.base_reason or module.home is not None:
        # Settings and base weights are in the values, and nowhere else.
        parts += [delta.shape, delta.scale, tensors_sha256(delta.tensors)]
    return " ".join(map(repr, parts))


def _form(delta: Delta) -> str:
    """What the time to make a byte depends on: the inner size, to a factor of two."""
    if isinstance(delta, LowRank):
        bits = max(delta.rank - 1, 0).bit_length()
        return f"Low-rank, up to rank {1 << bits}"
    return "Kronecker products"
