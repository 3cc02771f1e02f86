"""Numbers that come from outside: finite, or a sentence that says what they are instead."""

from math import inf, isfinite
from typing import Any

from .errors import StackError

SHOWN = 200  # characters of what somebody else wrote


def finite(value: Any, what: str) -> float:
    """`value` as a finite number; `what` begins the sentence that says it is none.

    Raises:
        StackError: it is none.
    """
    if isinstance(value, bool):
        raise StackError(f"{what} is {value}, not a number.")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError is a tensor's, of several numbers
        raise StackError(f"{what} is {value!r:.{SHOWN}}, not a number.") from None
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise StackError(f"{what} is {number}; it must be a finite number.")
    return number
