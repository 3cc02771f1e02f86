"""Values out of JSON that somebody else wrote: of the kind they should be, or a `ValueError`."""

from collections.abc import Mapping
from math import isfinite
from typing import Any


def as_number(value: object) -> float:
    """A finite number.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r:.60} stands for a number")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not isfinite(number):
        raise ValueError("a number is not finite")
    return number


def as_count(value: object) -> int:
    """A whole number, 0 or more.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.60} stands for a whole number")
    return value


def as_text(value: object) -> str:
    """A string.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} stands for a text")
    return value


def as_flag(value: object) -> bool:
    """True or false.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.60} stands for true or false")
    return value


def as_list(value: object) -> list[Any]:
    """A list.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"{value!r:.60} stands for a list")
    return list(value)


def as_object(value: object) -> Mapping[str, Any]:
    """A mapping of names to values.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.60} stands for an object")
    return value
