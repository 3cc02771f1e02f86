"""Deltas that are multiplied out once, and read by every candidate of a sweep.

What is kept does not depend on strengths, and is equal, bit for bit, to what would be made anew: a cache changes the
time that a merge takes, and nothing else. Whatever goes wrong with it, the deltas are made anew.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

import torch
from torch import Tensor

from ..core.errors import RecipeError
from ..core.params import unknown
from .disk import DiskStore
from .folder import remove_leftovers
from .rates import PROBE, Clock, Rates, disk_rates, memory_rates
from .room import free_disk, free_memory, is_in_memory, temporary_folder

MODES = ("disabled", "auto", "ram", "disk")
READINGS = 9  # of three candidates, with two to four passes each
TRIALS = 3  # deltas of a form whose making is timed before it is judged
UNKNOWN_MEMORY = 4 << 30  # what `auto` may take where nobody knows how much is free
SPARE_MEMORY = 1 << 30
SPARE_DISK = 5 << 30

MakeTiles: TypeAlias = Callable[[], Iterator[Tensor]]


@dataclass
class Stats:
    """What a cache did.

    Attributes:
        hits: deltas that it had.
        misses: deltas that it took in.
        recomputed: deltas that it did not take; they are made anew, every time.
        damaged: entries on the disk whose bytes had changed; they are made anew, too.
        ram_bytes: kept in memory.
        disk_bytes: kept on the disk.
        why: in sentences, why it did not keep more.
    """

    hits: int = 0
    misses: int = 0
    recomputed: int = 0
    damaged: int = 0
    ram_bytes: int = 0
    disk_bytes: int = 0
    why: list[str] = field(default_factory=list)


class DiffCache:
    """A cache of deltas, for one sweep: a context, at whose end nothing of it is left.

    It is handed to `merging.engine.execute` as `remember`. Not for several threads at once; several caches, in one
    process or in many, do not know of each other.

    Attributes:
        mode: `disabled`, `ram`, `disk`; `auto` measures, and does what pays.
        stats: what it did so far.
    """

    def __init__(
        self,
        mode: str = "auto",
        ram_share: float = 0.5,
        folder: Path | None = None,
        *,
        readings: int = READINGS,
        spare_disk: int = SPARE_DISK,
    ) -> None:
        """Nothing is written yet; what processes that died left in the folder is removed.

        Args:
            mode: one of `MODES`.
            ram_share: of the memory that is free now, what `auto` may fill, 0 to 1.
            folder: where the disk is used; None for the system's temporary one.
            readings: how often `auto` expects a delta to be read: candidates times passes.
            spare_disk: bytes that stay free on the disk.

        Raises:
            RecipeError: the mode is unknown, or the share is none.
        """
        if mode not in MODES:
            raise RecipeError(unknown("diff cache mode", mode, dict.fromkeys(MODES)))
        if not 0.0 <= ram_share <= 1.0:
            raise RecipeError(f"The diff cache's share of free memory is {ram_share}; it must lie in 0 to 1.")
        self.mode, self.stats = mode, Stats()
        self._above = folder or temporary_folder()
        self._readings, self._spare_disk = readings, spare_disk
        free = free_memory()
        self._limit = UNKNOWN_MEMORY if free is None else int(ram_share * free)
        self._ram: dict[str, Tensor] = {}
        self._disk: DiskStore | None = None
        self._is_open, self._has_disk = mode != "disabled", mode in ("disk", "auto")
        self._clocks: dict[str, Clock] = {}
        self._rates: dict[str, Rates] = {}
        self._verdicts: dict[str, str] = {}
        remove_leftovers(self._above)

    def __enter__(self) -> "DiffCache":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back; from now on everything is made anew. `stats` stay."""
        self._is_open = False
        self._ram.clear()
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def __call__(self, key: str, form: str, size: tuple[int, int], tiles: MakeTiles) -> Tensor | None:
        """A delta as it was kept.

        Args:
            key: what it depends on, all of it.
            form: what the time to make a byte of it depends on, in words.
            size: `(rows, columns)`.
            tiles: makes its rows, `(t, columns)` float32, in order; the memory of one may be reused for the next.

        Returns:
            The matrix, float32, on the CPU, never to be written into; None where it is to be made anew.
        """
        if not self._is_open:
            self.stats.recomputed += 1
            return None
        found = self._kept(key)
        if found is None:
            found = self._taken(key, form, size, tiles)
            self.stats.misses += found is not None
            self.stats.recomputed += found is None
        else:
            self.stats.hits += 1
        return found

    def told(self) -> str:
        """What it did, for a report."""
        stats = self.stats
        if self.mode == "disabled":
            return "Diff cache disabled: every delta was made anew."
        kept = f"{stats.ram_bytes / 1e9:.2f} GB in memory, {stats.disk_bytes / 1e9:.2f} GB on the disk"
        done = (
            f"Diff cache `{self.mode}`: {stats.misses} deltas kept ({kept}), {stats.hits} times read again,"
            f" {stats.recomputed} times made anew."
        )
        return " ".join([done, *self._verdicts.values(), *stats.why])

    def _kept(self, key: str) -> Tensor | None:
        if key in self._ram:
            return self._ram[key]
        if self._disk is None or key not in self._disk:
            return None
        try:
            found = self._disk.get(key)
        except (OSError, ValueError) as problem:
            self._without_disk(f"cannot be read ({problem})")
            return None
        if found is None:
            self.stats.damaged += 1
            self._say("What was read from the disk was not always what had been written; it was made anew.")
        return found

    def _taken(self, key: str, form: str, size: tuple[int, int], tiles: MakeTiles) -> Tensor | None:
        size_bytes = 4 * prod(size)
        if self.mode == "disk":
            return self._on_disk(key, size, tiles())
        if self.mode == "ram":
            return self._in_ram(key, size, tiles()) if self._fits(size_bytes) else None
        clock = self._clocks.setdefault(form, Clock())
        fits = self._fits(size_bytes)
        if clock.runs >= TRIALS and not self._pays(form, clock, fits):
            return None
        timed = clock.timed(tiles())
        if fits:
            return self._in_ram(key, size, timed)
        if clock.runs >= TRIALS:
            return self._on_disk(key, size, timed)
        for _ in timed:  # to know how long it takes
            pass
        return None

    def _pays(self, form: str, clock: Clock, fits: bool) -> bool:
        """Whether keeping a delta is faster than making it anew for every reading."""
        where = "memory" if fits else "the disk"
        rates = self._rates_of(where)
        if rates is None:
            return False
        pays = rates.of(clock.rate, self._readings) < self._readings * clock.rate
        # One verdict for each form and place, the last one: its numbers settle while deltas are made.
        self._verdicts[f"{form} {where}"] = (
            f"{form}: {clock.rate * 1e9:.2f} s for a GB made, {rates.write * 1e9:.2f} s written to {where},"
            f" {rates.read * 1e9:.2f} s read: {'kept there' if pays else 'made anew'}."
        )
        return pays

    def _rates_of(self, where: str) -> Rates | None:
        """What a place costs, measured once; None if it is not to be had."""
        if where == "the disk" and not self._has_disk:
            return None
        if where not in self._rates:
            try:
                if where == "memory":
                    self._rates[where] = memory_rates()
                else:
                    self._refuse_small_disk()
                    self._rates[where] = disk_rates(self._above)
            except OSError as problem:
                self._without_disk(problem.strerror or str(problem))
        return self._rates.get(where)

    def _refuse_small_disk(self) -> None:
        if is_in_memory(self._above):
            raise OSError("its files take memory")
        if free_disk(self._above) - 4 * PROBE < self._spare_disk:
            raise OSError(f"less than {self._spare_disk / 1e9:.3g} GB would stay free")

    def _fits(self, size_bytes: int) -> bool:
        """Whether memory has room for so much more."""
        if self.mode == "auto" and self.stats.ram_bytes + size_bytes > self._limit:
            self._say(f"Its share of memory, {self._limit / 1e9:.2f} GB, is used up.")
            return False
        free = free_memory()
        if free is not None and free - size_bytes < SPARE_MEMORY:
            self._say(f"Less than {SPARE_MEMORY / 1e9:.2f} GB of memory would stay free.")
            return False
        return True

    def _in_ram(self, key: str, size: tuple[int, int], tiles: Iterator[Tensor]) -> Tensor:
        matrix, row = torch.empty(size), 0
        for tile in tiles:
            matrix[row : row + len(tile)] = tile
            row += len(tile)
        self._ram[key] = matrix
        self.stats.ram_bytes += matrix.nbytes
        return matrix

    def _on_disk(self, key: str, size: tuple[int, int], tiles: Iterator[Tensor]) -> Tensor | None:
        if not self._has_disk:
            return None
        try:
            if self._disk is None:
                self._disk = DiskStore(self._above, self._spare_disk)
                if is_in_memory(self._above):
                    self._say(f"Files in {self._above} take memory: choose a folder on a disk.")
            self._disk.put(key, size, tiles)
            self.stats.disk_bytes = self._disk.size_bytes
            return self._disk.get(key)
        except OSError as problem:
            self._without_disk(problem.strerror or str(problem))
            return None

    def _without_disk(self, reason: str) -> None:
        """What is there stays readable; no more is written."""
        self._has_disk = False
        self._say(f"The disk at {self._above} takes no more ({reason}); what did not fit was made anew.")

    def _say(self, sentence: str) -> None:
        if sentence not in self.stats.why:
            self.stats.why.append(sentence)
