"""How long work speaks to whoever waits: after every target, and it may be stopped there."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

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
