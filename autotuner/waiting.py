"""Waiting for verdicts that are reached elsewhere."""

from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager

from ..core.progress import Progress, silent
from .verdict import Verdict

GLANCE = 0.1  # seconds between two looks at whether the user cancelled

Waiting = Mapping[int, "Future[Verdict]"]


@contextmanager
def abandoned(waiting: Waiting) -> Iterator[None]:
    """Cancel what is still waited for where the work inside ends by an exception."""
    try:
        yield
    except BaseException:
        for one in waiting.values():
            one.cancel()
        raise


def settled(waiting: Waiting, progress: Progress = silent) -> dict[int, Verdict]:
    """The verdicts, once all of them are there.

    Args:
        waiting: by the place of the candidate.
        progress: told again and again; what it raises ends the waiting.
    """
    left, total = set(waiting.values()), len(waiting)
    while left:
        progress("evaluate", total - len(left), total)
        _, left = wait(left, GLANCE, FIRST_COMPLETED)
    if total:
        progress("evaluate", total, total)
    return {place: one.result() for place, one in waiting.items()}
