"""Real tensors for the files of `namings`, and the first columns of the delta that each module must add.

    tensors = tensors_of(file)                      # as a LoRA file of the released model's size holds them
    first_columns(file, name)                       # (o, 4), float64: `scale · up @ down`, multiplied out

All values are views of one pool of noise, so that a file of any size costs nothing. A column of a delta comes from
the same column of down alone: with `columns` the downs are cut, and what a reader makes of them is the beginning of
what it makes of the whole file. That is how thousands of large weights are compared in seconds.
"""

import zlib
from collections.abc import Iterable
from functools import lru_cache
from math import prod

import numpy as np
import torch
from torch import Tensor

from .namings import KOHYA, NamedFile

COLUMNS = 4
_ALPHA = 1.5
_POOL = 1 << 20


def tensors_of(
    file: NamedFile, columns: int | None = None, names: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """The file's tensors by name.

    Args:
        file: whose.
        columns: of the inputs of every down, cut: a view of the same numbers.
        names: some of its modules; all of them if it is not given.
    """
    tensors: dict[str, Tensor] = {}
    for name in file.routes if names is None else names:
        up, down = factors_of(file, name)
        tensors[name + file.up], tensors[name + file.down] = up, down[:, :columns]
        if file.up == KOHYA[0]:
            tensors[f"{name}.alpha"] = torch.tensor(_ALPHA)
    return tensors | {name: torch.ones(shape) for name, shape in file.extras.items()}


def factors_of(file: NamedFile, name: str) -> tuple[Tensor, Tensor]:
    """A module's up `(o, 2[, 1, 1])` and down `(2, i[, kh, kw])`."""
    up, down = file.shapes(name)
    return _noise(f"{name} up", up), _noise(f"{name} down", down)


def first_columns(file: NamedFile, name: str) -> np.ndarray:
    """`(o, COLUMNS·kh·kw)` of the delta that the weight gains, its rows in the weight's own order."""
    up, down = factors_of(file, name)
    scale = _ALPHA / 2 if file.up == KOHYA[0] else 1.0
    exact = up.double().flatten(1).numpy() @ down[:, :COLUMNS].double().flatten(1).numpy()
    if file.routes[name].swap_halves:
        exact = np.concatenate(np.split(exact, 2)[::-1])
    return scale * exact


def telling(file: NamedFile) -> list[str]:
    """The names to compute with: one for each way that a module may lie in its weight, and differ in shape."""
    kinds: dict[object, str] = {}
    for name, route in file.routes.items():
        up, down = file.shapes(name)
        part = route.target.part
        kinds.setdefault((route.swap_halves, part and (part.start > 0, part.length), len(down), up[0]), name)
    return list(kinds.values())


@lru_cache(maxsize=1)
def _pool() -> Tensor:
    return torch.randn(_POOL, generator=torch.Generator().manual_seed(0))


def _noise(name: str, shape: tuple[int, ...]) -> Tensor:
    size = prod(shape)
    start = zlib.crc32(name.encode()) % (_POOL - size)
    return _pool()[start : start + size].view(shape)
