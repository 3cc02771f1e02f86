"""What every mode of the cache keeps, what it says, and what it does when something is wrong."""

import errno
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lora_alloy.cache import diffs as module
from lora_alloy.cache import rates
from lora_alloy.cache.diffs import MODES, DiffCache, MakeTiles
from lora_alloy.cache.disk import DiskStore
from lora_alloy.cache.rates import Clock, Rates, disk_rates, memory_rates
from lora_alloy.core.errors import RecipeError

TESTS = Path(__file__).resolve().parents[1]
SIZE = (48, 1024)
GIB = 1 << 30


def values(seed: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


class Time:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clocked(monkeypatch) -> Time:
    """What the rates are measured by, and what passes while tiles are made."""
    told = Time()
    monkeypatch.setattr(rates, "perf_counter", told)
    monkeypatch.setattr(time, "sleep", told.sleep)
    return told


def make(seed: int, pause: float = 0.0, asked: list[int] | None = None) -> MakeTiles:
    """Tiles of some values, made as slowly as is wanted."""

    def tiles() -> Iterator[Tensor]:
        if asked is not None:
            asked.append(seed)
        for part in values(seed).split(16):
            time.sleep(pause)
            yield part

    return tiles


def ask(cache: DiffCache, seed: int, form: str = "form", pause: float = 0.0) -> Tensor | None:
    found = cache(f"key {seed}", form, SIZE, make(seed, pause))
    assert found is None or found.equal(values(seed))
    return found


@pytest.fixture(autouse=True)
def much_is_free(monkeypatch):
    """As on a machine with room, whatever this one has."""
    monkeypatch.setattr(module, "free_memory", lambda: 64 * GIB)
    monkeypatch.setattr(module, "is_in_memory", lambda folder: False)


def settled(monkeypatch, memory: Rates, disk: Rates | None = None) -> None:
    """Rates that are what they are said to be."""
    monkeypatch.setattr(module, "memory_rates", lambda: memory)
    monkeypatch.setattr(module, "disk_rates", lambda folder: disk)


FAST, SLOW = Rates(0.0, 0.0), Rates(1.0, 1.0)


@pytest.mark.parametrize("mode", ["ram", "disk"])
def test_what_is_kept_is_made_once(mode, tmp_path):
    asked: list[int] = []
    with DiffCache(mode, folder=tmp_path, spare_disk=0) as cache:
        for _ in range(3):
            for seed in range(4):
                found = cache(f"key {seed}", "form", SIZE, make(seed, asked=asked))
                assert found is not None and found.equal(values(seed))
        size = 4 * values(0).nbytes
        kept = (cache.stats.ram_bytes, cache.stats.disk_bytes)
        assert kept == ((size, 0) if mode == "ram" else (0, size))
    assert asked == [0, 1, 2, 3]
    assert (cache.stats.misses, cache.stats.hits, cache.stats.recomputed) == (4, 8, 0)
    assert "4 deltas kept" in cache.told() and "8 times read again" in cache.told()
    assert not list(tmp_path.iterdir())


def test_a_cache_that_is_off_keeps_nothing(tmp_path):
    with DiffCache("disabled", folder=tmp_path) as cache:
        assert ask(cache, 0) is None and ask(cache, 0) is None
    assert cache.told() == "Diff cache disabled: every delta was made anew."
    assert (cache.stats.recomputed, cache.stats.ram_bytes, cache.stats.disk_bytes) == (2, 0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_after_its_end_everything_is_made_anew(mode, tmp_path):
    with DiffCache(mode, folder=tmp_path, spare_disk=0) as cache:
        ask(cache, 0)
    before = cache.stats.hits, cache.stats.misses
    assert ask(cache, 0) is None and (cache.stats.hits, cache.stats.misses) == before
    cache.close()


def test_wrong_words_and_shares_are_refused():
    with pytest.raises(RecipeError, match="Did you mean 'disk'"):
        DiffCache("disc")
    for share in (-0.1, 1.5, math.nan):
        with pytest.raises(RecipeError, match="must lie in 0 to 1"):
            DiffCache("auto", share)


@pytest.mark.parametrize("mode", ["ram", "disk", "auto"])
@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError], ids=["stopped", "failed"])
def test_a_cancel_at_any_place_leaves_nothing(mode, problem, tmp_path):
    def failing() -> Iterator[Tensor]:
        yield values(9)[:16]
        raise problem

    with pytest.raises(problem), DiffCache(mode, folder=tmp_path, spare_disk=0) as cache:
        ask(cache, 0)
        cache("key 9", "form", SIZE, failing)
    assert not list(tmp_path.iterdir())


# what auto decides


@pytest.mark.parametrize("pays", [True, False])
def test_auto_follows_what_it_measures(pays, clocked, tmp_path, monkeypatch):
    settled(monkeypatch, FAST if pays else SLOW)
    with DiffCache("auto", folder=tmp_path, spare_disk=0) as cache:
        for seed in range(8):
            ask(cache, seed, pause=0.001)
        assert cache.stats.misses == (8 if pays else module.TRIALS)
        again = [ask(cache, seed) is not None for seed in range(8)]
        assert again == [pays or seed < module.TRIALS for seed in range(8)]
    assert ("kept there" if pays else "made anew") in cache.told()


def test_auto_judges_every_form_by_its_own_time(clocked, tmp_path, monkeypatch):
    # Keeping costs 0.5 s; nine readings of a slow one take 0.8 s, those of a quick one 0.3 s.
    settled(monkeypatch, Rates(0.5 / values(0).nbytes, 0.0))
    with DiffCache("auto", folder=tmp_path, spare_disk=0) as cache:
        for seed in range(5):
            ask(cache, seed, "slow", pause=0.03)
            ask(cache, seed + 10, "quick", pause=0.01)
        kept = {
            form: [cache(f"key {seed}", form, SIZE, make(seed)) is not None for seed in seeds]
            for form, seeds in (("slow", (3, 4)), ("quick", (13, 14)))
        }
    assert kept == {"slow": [True, True], "quick": [False, False]}


def test_auto_fills_its_share_then_spills(tmp_path, monkeypatch):
    settled(monkeypatch, FAST, FAST)
    monkeypatch.setattr(module, "free_memory", lambda: 2 * GIB)
    share = 4.5 * values(0).nbytes / (2 * GIB)
    with DiffCache("auto", share, tmp_path, spare_disk=0) as cache:
        for seed in range(7):
            ask(cache, seed)
        assert (cache.stats.ram_bytes, cache.stats.disk_bytes) == (4 * values(0).nbytes, 3 * values(0).nbytes)
        assert all(ask(cache, seed) is not None for seed in range(7))
    assert "Its share of memory" in cache.told() and "written to the disk" in cache.told()
    assert not list(tmp_path.iterdir())


def test_auto_makes_anew_what_the_disk_would_be_slower_for(tmp_path, monkeypatch):
    settled(monkeypatch, FAST, SLOW)
    monkeypatch.setattr(module, "free_memory", lambda: 2 * GIB)
    with DiffCache("auto", 4.5 * values(0).nbytes / (2 * GIB), tmp_path, spare_disk=0) as cache:
        assert [ask(cache, seed) is not None for seed in range(7)] == [True] * 4 + [False] * 3
    assert cache.stats.disk_bytes == 0


def test_auto_without_any_share_still_measures(tmp_path, monkeypatch):
    settled(monkeypatch, FAST, FAST)
    with DiffCache("auto", 0.0, tmp_path, spare_disk=0) as cache:
        assert [ask(cache, seed) is not None for seed in range(5)] == [False] * 3 + [True] * 2
    assert cache.stats.ram_bytes == 0 and cache.stats.disk_bytes == 2 * values(0).nbytes


def test_where_nobody_knows_what_is_free_auto_takes_a_fixed_amount(tmp_path, monkeypatch):
    settled(monkeypatch, FAST, FAST)
    monkeypatch.setattr(module, "free_memory", lambda: None)
    monkeypatch.setattr(module, "UNKNOWN_MEMORY", 2 * values(0).nbytes)
    with DiffCache("auto", folder=tmp_path, spare_disk=0) as cache:
        for seed in range(5):
            ask(cache, seed)
    assert cache.stats.ram_bytes == 2 * values(0).nbytes


@pytest.mark.parametrize("mode", ["ram", "auto"])
def test_memory_that_others_took_meanwhile_is_left_to_them(mode, tmp_path, monkeypatch):
    settled(monkeypatch, FAST, SLOW)
    with DiffCache(mode, folder=tmp_path, spare_disk=0) as cache:
        assert ask(cache, 0) is not None
        monkeypatch.setattr(module, "free_memory", lambda: GIB)
        assert ask(cache, 1) is None and ask(cache, 0) is not None
    assert "of memory would stay free" in cache.told()


# what may go wrong with the disk


def test_a_full_disk_is_said_and_what_was_kept_stays(tmp_path, monkeypatch):
    with DiffCache("disk", folder=tmp_path, spare_disk=0) as cache:
        assert ask(cache, 0) is not None
        write = DiskStore._write
        monkeypatch.setattr(DiskStore, "_write", _full)
        assert ask(cache, 1) is None
        monkeypatch.setattr(DiskStore, "_write", write)
        assert ask(cache, 2) is None and ask(cache, 0) is not None
    assert os.strerror(errno.ENOSPC) in cache.told() and "made anew" in cache.told()
    assert not list(tmp_path.iterdir())


def _full(store: DiskStore, raw: memoryview) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.skipif(
    not Path("/dev/full").exists() or not hasattr(os, "pwrite"), reason="there is no disk that is always full"
)
def test_a_device_that_is_always_full(tmp_path, monkeypatch):
    from lora_alloy.cache import disk

    monkeypatch.setattr(
        disk.tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("r+b", buffering=0)
    )
    with DiffCache("disk", folder=tmp_path, spare_disk=0) as cache:
        assert ask(cache, 0) is None
    assert cache.stats.why and not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", ["disk", "auto"])
def test_what_must_stay_free_stays_free(mode, tmp_path, monkeypatch):
    settled(monkeypatch, FAST, FAST)
    with DiffCache(mode, 0.0, tmp_path, spare_disk=2 * shutil.disk_usage(tmp_path).total) as cache:
        assert [ask(cache, seed) for seed in range(5)] == [None] * 5
    assert "would stay free" in cache.told()


@pytest.mark.parametrize("mode", ["disk", "auto"])
@pytest.mark.parametrize("place", ["missing", "a file", "no folders may be made"])
def test_a_folder_that_cannot_be_written_is_said(mode, place, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "memory_rates", lambda: FAST)
    folder = tmp_path / "x"
    if place == "a file":
        folder.write_bytes(b"")
    elif place == "no folders may be made":
        folder = Path("/proc/self")
        if not folder.is_dir() or sys.platform != "linux":
            pytest.skip("there is no /proc")
    with DiffCache(mode, 0.0, folder, spare_disk=0) as cache:
        assert [ask(cache, seed) for seed in range(5)] == [None] * 5
    assert f"The disk at {folder} takes no more" in cache.told()


def test_auto_does_not_spill_into_a_folder_that_takes_memory(tmp_path, monkeypatch):
    settled(monkeypatch, FAST, FAST)
    monkeypatch.setattr(module, "is_in_memory", lambda folder: True)
    with DiffCache("auto", 0.0, tmp_path, spare_disk=0) as cache:
        assert [ask(cache, seed) for seed in range(5)] == [None] * 5
    assert "its files take memory" in cache.told()
    with DiffCache("disk", folder=tmp_path, spare_disk=0) as cache:
        assert ask(cache, 0) is not None
    assert "choose a folder on a disk" in cache.told()


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="Windows has no pwrite")
def test_a_damaged_entry_is_made_anew_and_said(tmp_path):
    with DiffCache("disk", folder=tmp_path, spare_disk=0) as cache:
        for seed in range(3):
            ask(cache, seed)
        assert cache._disk is not None
        os.pwrite(cache._disk._stream.fileno(), b"damage", cache._disk._places["key 1"].begin + 1000)
        for _ in range(2):
            assert all(ask(cache, seed) is not None for seed in range(3))
    assert cache.stats.damaged == 1 and cache.stats.misses == 4
    assert "not always what had been written" in cache.told()


# rates


def test_rates_are_measured_where_things_are_kept(tmp_path):
    for found in (memory_rates(), disk_rates(tmp_path)):
        assert 1e-12 < found.write < 1e-6 and 1e-12 < found.read < 1e-6
    assert not list(tmp_path.iterdir())
    assert Rates(5.0, 2.0).of(3.0, 4) == 3 + 5 + 4 * 2


def test_a_clock_takes_the_fastest_run_and_counts_no_pause_of_the_readers(clocked):
    clock = Clock()
    for pause in (0.02, 0.005, 0.02):
        for _ in clock.timed(make(0, pause)()):
            clocked.sleep(0.03)
    assert clock.runs == 3 and clock.rate == pytest.approx(3 * 0.005 / values(0).nbytes)
