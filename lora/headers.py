"""Text from a file's header is hostile: it may be huge, deep, or not what it should be."""

import json
from math import isfinite

TEXT_LIMIT = 300
NAME_LIMIT = 200
JSON_LIMIT = 4_000_000


def cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text` in one line of at most `limit` characters. Whoever shows it must still escape it."""
    line = " ".join(text[: 2 * limit].split())
    return line if len(line) <= limit and len(text) <= 2 * limit else f"{line[:limit]}…"


def brief(name: str) -> str:
    """The name of a tensor or a module, short enough to stand in a sentence."""
    return cut(name, NAME_LIMIT)


def parsed(text: str) -> object:
    """`text` as JSON, or None if it is not, or is larger than anything sensible."""
    try:
        return json.loads(text) if 0 < len(text) <= JSON_LIMIT else None
    except (ValueError, RecursionError):
        return None


def number(value: object) -> float | None:
    """A finite number, also one written as text; else None."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if isfinite(found) else None
