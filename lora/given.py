"""Entries as callers give them: paths, texts with strengths, pairs."""

from pathlib import Path
from typing import TypeAlias

from ..core.errors import StackError
from .entries import Entry
from .file import LoraFile, open_lora

EntryLike: TypeAlias = (
    "Entry | LoraFile | str | Path | tuple[str | Path, float] | tuple[str | Path, float, float]"
)


def entry_of(given: EntryLike) -> Entry:
    """An entry out of whatever stands for one.

    Raises:
        FileError: the file cannot be read.
        StackError: a strength is not a number.
    """
    if isinstance(given, Entry):
        return given
    if isinstance(given, LoraFile):
        return Entry(given)
    if isinstance(given, tuple):
        clip = float(given[2]) if len(given) == 3 else None
        return Entry(open_lora(given[0]), float(given[1]), clip)
    if isinstance(given, Path):
        return Entry(open_lora(given))
    return parse_entry(given)


def parse_entry(text: str) -> Entry:
    """`FILE[:STRENGTH[:CLIP]]`; a colon that belongs to the path stays with it.

    Raises:
        FileError: the file cannot be read.
        StackError: a strength is not a number.
    """
    path, strengths = text, []
    while len(strengths) < 2 and not _exists(path) and ":" in path:
        path, number = path.rsplit(":", 1)
        try:
            strengths.insert(0, float(number))
        except ValueError:
            if "/" in number or "\\" in number:
                path = text
                break
            raise StackError(
                f"`{number}` in `{text}` is not a strength; write FILE:STRENGTH, as in `ink.safetensors:0.8`."
            ) from None
    return Entry(open_lora(path), *strengths[:2])


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name longer than the file system allows
        return False
