"""Memory that is free already, and that the C library keeps for itself."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """Return free memory to the system; on other systems than Linux with glibc they do so by themselves.

    Small values that stay lie between large ones that went. Without this, a process grows with the number of
    targets, by hundreds of MiB for a few numbers about each of them.
    """
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    if not sys.platform.startswith("linux"):
        return int
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    return int if trim is None else trim
