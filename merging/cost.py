"""What a merge took: time by its parts, and memory."""

from dataclasses import dataclass
from time import perf_counter

from ..core.usage import peak_bytes


@dataclass(frozen=True)
class Cost:
    """What a merge took.

    Attributes:
        measure_seconds: to read the files and see how they relate; the inner merges of a formula are in it.
        plan_seconds: to decide.
        merge_seconds: to make the result.
        peak_bytes: the most memory the process has held; 0 where the system does not tell.
        grown_bytes: how much of that came since the merge began.
    """

    measure_seconds: float
    plan_seconds: float
    merge_seconds: float
    peak_bytes: int
    grown_bytes: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.measure_seconds + self.plan_seconds + self.merge_seconds


class Meter:
    """Runs along with a merge from its beginning, and is told when a part of it ends."""

    def __init__(self) -> None:
        self._peak = peak_bytes()
        self._times = [perf_counter()]

    def lap(self) -> None:
        """A part has ended: to measure, to plan."""
        self._times.append(perf_counter())

    def cost(self) -> Cost:
        """What it took, after two laps and the merge."""
        started, measured, planned = self._times
        held = peak_bytes()
        merge_seconds = perf_counter() - planned
        return Cost(measured - started, planned - measured, merge_seconds, held, held - self._peak)
