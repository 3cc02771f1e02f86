"""The canonical modules of a family or a text encoder: small files in `data`, written from ComfyUI's own models."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .names import INDEX, row_of

_FOLDER = Path(__file__).with_name("data")
_RANGE = re.compile(r"\{(\d+)-(\d+)\}")


@dataclass(frozen=True, slots=True)
class Listed:
    """A module, or a row of them with `INDEX` in the path, and the shape of its weight in the released model."""

    path: str
    shape: tuple[int, ...]
    blocks: range | None = None


@lru_cache(maxsize=128)
def read(name: str) -> str:
    """The text of the file `name`."""
    return (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@lru_cache(maxsize=128)
def listed(name: str) -> tuple[Listed, ...]:
    """The modules in the file `name`; a line is a path, such as `blocks.{0-39}.ffn.0`, and a shape."""
    lines = (line.split() for line in read(name).splitlines() if not line.startswith("#"))
    return tuple(one for path, *sizes in lines for one in _unfolded(path, tuple(map(int, sizes))))


def _unfolded(path: str, shape: tuple[int, ...]) -> Iterator[Listed]:
    """All ranges written out, but for the first if it is the first number: those are a row."""
    first, *rest = _RANGE.finditer(path) if "{" in path else (None,)
    if first is None:
        yield Listed(path, shape)
        return
    if rest:
        last = rest[-1]
        for index in _range(last):
            yield from _unfolded(f"{path[: last.start()]}{index}{path[last.end() :]}", shape)
        return
    head, tail = path[: first.start()], path[first.end() :]
    row = row_of(f".{head}0{tail}")
    if row is not None and row.pattern == f".{head}{INDEX}{tail}":
        yield Listed(f"{head}{INDEX}{tail}", shape, _range(first))
    else:
        for index in _range(first):
            yield Listed(f"{head}{index}{tail}", shape)


def _range(found: re.Match[str]) -> range:
    return range(int(found[1]), int(found[2]) + 1)
