"""What element-wise merges hold at a time, and what a cancel within a target leaves: nothing."""

import weakref
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lora_alloy.api import Merged, merge
from lora_alloy.core import progress
from lora_alloy.core.threads import one_thread
from lora_alloy.lora.factors import LowRank
from lora_alloy.merging import tiles
from lora_alloy.merging.elements import blended
from lora_alloy.merging.engine import execute
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.recipe import Recipe
from lora_alloy.merging.work import Work
from lora_alloy_testing.builders import entry_of, noise, write_lora

TILE = 1 << 14
COUNTS = 1 << 19  # bytes of the bins that a threshold is found by, for each LoRA


class Peak(TorchDispatchMode):
    """Notes the most bytes that the tensors held which torch made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self._now = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor):
                self._note(one.untyped_storage())
        return made

    def _note(self, storage: Any) -> None:
        key = storage.data_ptr()
        if key not in self._known:
            self._known[key] = storage.nbytes()
            self._now += storage.nbytes()
            self.bytes = max(self.bytes, self._now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self._now -= self._known.pop(key, 0)


def peak_of_ties(count: int, rows: int, columns: int = 512, rank: int = 4) -> int:
    """The bytes that one target takes beside its result."""
    settings = {"density": 0.5, "divisor": "mass", "vote": "frequency", "unit": "entry"}
    deltas = [
        LowRank(torch.randn(rows, rank), torch.randn(rank, columns), 1.0, (rows, columns))
        for _ in range(count)
    ]
    work = Work(
        tuple(range(count)),
        (1.0,) * count,
        ("",) * count,
        ("all",) * count,
        "trim",
        (),
        1.0,
        1.0,
        0,
        settings,
    )
    with torch.no_grad(), one_thread(), Peak() as peak:
        blended(deltas, work, METHODS["ties"], "target")
    return peak.bytes - rows * columns * 4


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "ENTRIES", TILE)


@pytest.mark.usefixtures("small_tiles")
def test_a_taller_target_takes_its_result_more_and_no_tile():
    low, high = peak_of_ties(3, 512), peak_of_ties(3, 2048)
    factors = 3 * (2048 - 512) * 4 * 4
    assert high - low <= factors + TILE * 4
    assert high < 2048 * 512 * 4  # less than one delta, where there are three


@pytest.mark.usefixtures("small_tiles")
def test_thirty_loras_take_their_tiles_factors_and_counts_more_than_three():
    few, many = peak_of_ties(3, 512), peak_of_ties(30, 512)
    each = TILE * 4 + (512 + 512) * 4 * 4 + 3 * COUNTS
    assert many - few <= 27 * each


def lora_files(folder: Path, count: int, targets: int, shape: tuple[int, int] = (256, 192)) -> list[Path]:
    return [
        write_lora(
            folder / f"{count}-{targets}-{n}.safetensors",
            {
                f"lora_unet_blocks_{block}_q": noise((*shape,), 4, seed=100 * n + block)
                for block in range(targets)
            },
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("method", ["ties", "consensus", "weighted_sum"])
def test_the_number_of_targets_does_not_matter(method, tmp_path):
    peaks = []
    for targets in (2, 12):
        stack = [entry_of(path) for path in lora_files(tmp_path, 3, targets)]
        merged = merge(stack, Recipe(method=method))
        with torch.no_grad(), Peak() as peak:
            for _ in execute(merged.stack, merged.plan):
                pass
        peaks.append(peak.bytes)
    assert peaks[1] <= 1.2 * peaks[0]


class CancelledError(Exception):
    pass


def cancelling(what: str, after: int) -> tuple[Callable[[str, int, int], None], list[tuple[str, int, int]]]:
    """A progress that raises when it has heard `what` so many times, and all that it heard."""
    heard: list[tuple[str, int, int]] = []

    def tell(told: str, done: int, total: int) -> None:
        heard.append((told, done, total))
        if sum(one[0] == what for one in heard) >= after:
            raise CancelledError

    return tell, heard


def saved(merged: Merged, path: Path) -> bytes:
    merged.save(path)
    return path.read_bytes()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_cancel_within_a_target_ends_it_there(is_lazy, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    files, made = lora_files(tmp_path, 3, 1, (2048, 192)), []
    merge_tile = METHODS["ties"].merge

    def counted(*given: Any, statistics: torch.Tensor, **settings: Any) -> torch.Tensor:
        made.append(len(given[0]))
        return merge_tile(*given, statistics=statistics, **settings)

    # The engine reads which settings a method takes off its signature.
    counted.__signature__ = signature(merge_tile)  # type: ignore[attr-defined]
    recipe, entries = Recipe(method="ties"), [entry_of(path) for path in files]
    whole = saved(merge(entries, recipe), tmp_path / "whole.safetensors")
    monkeypatch.setattr(METHODS["ties"], "merge", counted)
    merge(entries, recipe, progress=(told := cancelling("merge", 10**9))[0])
    tiles_in_all, beats = len(made), sum(one[0] == "merge" for one in told[1])
    assert beats > tiles_in_all > 20
    made.clear()
    tell, heard = cancelling("merge", beats - 10)
    with pytest.raises(CancelledError):
        merge(entries, recipe, progress=tell, is_lazy=is_lazy)
    assert heard[-1] == ("merge", 0, 1)
    assert 0 < len(made) < tiles_in_all
    assert saved(merge(entries, recipe), tmp_path / "again.safetensors") == whole


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("formula", ["", "(1+2)+3"])
def test_a_cancelled_merge_leaves_nothing_that_a_later_one_takes_up(formula, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    entries = [entry_of(path) for path in lora_files(tmp_path, 3, 3)]
    recipe = Recipe(method="ties", formula=formula)
    whole = saved(merge(entries, recipe), tmp_path / "whole.safetensors")
    heard = cancelling("", 10**9)
    merge(entries, recipe, progress=heard[0])
    counts = {what: sum(one[0] == what for one in heard[1]) for what in ("analyse", "plan", "merge")}
    there = sorted(tmp_path.iterdir())
    for what, count in counts.items():
        for after in sorted({1, count // 2, count}):
            with pytest.raises(CancelledError):
                merge(entries, recipe, progress=cancelling(what, after)[0])
    assert sorted(tmp_path.iterdir()) == there
    assert saved(merge(entries, recipe), tmp_path / "whole.safetensors") == whole


def test_nobody_is_told_more_often_than_now_and_then(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    told: list[float] = []
    with progress.beating(lambda: told.append(now[0])):
        for _ in range(100):
            now[0] += 0.0625
            progress.beat()
    progress.beat()
    assert told == [0.25 * (n + 1) for n in range(25)]
