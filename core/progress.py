"""How long work speaks to whoever waits: after every target, and it may be stopped there."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TypeVar

Item = TypeVar("Item")

PAUSE = 0.2  # seconds between two looks at whether somebody has cancelled, within a target

Progress = Callable[[str, int, int], None]
"""Called as `(what, done, total)`; what it raises ends the work, and nothing is left half-done."""


def silent(what: str, done: int, total: int) -> None:
    """A progress that nobody watches."""


def told(items: Iterable[Item], total: int, what: str, progress: Progress) -> Iterator[Item]:
    """The items, one by one, with `progress` told before the first and after each."""
    progress(what, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        progress(what, done, total)


_beat: ContextVar[Callable[[], object] | None] = ContextVar("_beat", default=None)


@contextmanager
def beating(tell: Callable[[], object]) -> Iterator[None]:
    """While this lasts, long work on one target calls `tell` now and then, and what it raises ends the work."""
    last = monotonic()

    def beat_again() -> None:
        nonlocal last
        if monotonic() - last >= PAUSE:
            tell()
            last = monotonic()

    before = _beat.set(beat_again)
    try:
        yield
    finally:
        _beat.reset(before)


def beat() -> None:
    """Called from within long work, as often as it likes."""
    if (told_by := _beat.get()) is not None:
        told_by()
