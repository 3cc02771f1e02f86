"""Matrices on the disk come back as they were, or not at all; what cannot be written is an error, not a signal."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lora_alloy.cache import disk as module
from lora_alloy.cache.disk import DiskStore

posix_only = pytest.mark.skipif(os.name != "posix", reason="POSIX alone has files without names")


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def tiles(whole: Tensor, height: int = 5) -> Iterator[Tensor]:
    """Rows in one space that is used again and again, as the engine's tiles are."""
    space = torch.empty(height, whole.shape[1])
    for part in whole.split(height):
        space[: len(part)] = part
        yield space[: len(part)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    made = DiskStore(tmp_path, 0)
    yield made
    made.close()


@pytest.mark.parametrize("size", [(1, 1), (7, 13), (640, 700), (3, 100_001), (0, 4), (4, 0)])
def test_what_was_put_comes_back_bit_for_bit(size, store):
    whole = matrix(*size)
    if whole.numel() > 1:
        whole.view(-1)[:2] = torch.tensor([float("nan"), -0.0])
    store.put("a", size, tiles(whole))
    store.put("b", size, tiles(-whole, 1))
    for key, expected in (("a", whole), ("b", -whole), ("a", whole)):
        found = store.get(key)
        assert found is not None and found.shape == size
        assert found.view(torch.int32).equal(expected.view(torch.int32))
    assert "a" in store and "c" not in store
    assert store.size_bytes == 2 * whole.nbytes


def test_writing_into_what_came_back_does_not_change_the_file(store):
    store.put("a", (4, 4), tiles(matrix(4, 4)))
    found = store.get("a")
    assert found is not None
    found.zero_()
    again = store.get("a")
    assert again is not None and again.equal(matrix(4, 4))


def test_what_came_back_outlives_the_store(tmp_path):
    store = DiskStore(tmp_path, 0)
    store.put("a", (40, 40), tiles(matrix(40, 40)))
    found = store.get("a")
    store.close()
    assert found is not None and found.equal(matrix(40, 40))
    del found
    assert not list(tmp_path.iterdir())


@posix_only
def test_nothing_is_to_be_seen_in_the_folder_while_it_is_used(store, tmp_path):
    store.put("a", (40, 40), tiles(matrix(40, 40)))
    assert store.folder is None and not list(tmp_path.iterdir())


def test_a_file_that_the_system_shows_stays_in_its_folder_until_the_end(tmp_path, monkeypatch):
    """As on Windows, and on disks in a network."""

    def shown(*, dir: Path, buffering: int) -> object:
        return (dir / "shown").open("x+b", buffering=buffering)

    monkeypatch.setattr(module.tempfile, "TemporaryFile", shown)
    store = DiskStore(tmp_path, 0)
    assert store.folder is not None and store.folder.is_dir()
    store.put("a", (4, 4), tiles(matrix(4, 4)))
    other = DiskStore(tmp_path, 0)
    found = store.get("a")
    assert found is not None and found.equal(matrix(4, 4)) and store.folder.is_dir()
    other.close()
    store.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", [0, 3, 400_000, 1_119_999])
@pytest.mark.parametrize("bit", [0, 7])
def test_one_bit_that_changed_is_found(place, bit, store):
    whole = matrix(400, 700)
    store.put("a", (400, 700), tiles(whole))
    store.put("b", (400, 700), tiles(whole))
    raw = os.pread(store._stream.fileno(), 1, place)[0]
    os.pwrite(store._stream.fileno(), bytes([raw ^ (1 << bit)]), place)
    assert store.get("a") is None and "a" not in store
    assert store.get("b") is not None


def test_exchanged_stretches_and_zeros_are_found(store):
    whole = matrix(1200, 1024)
    for key in "ab":
        store.put(key, (1200, 1024), tiles(whole))
    handle, megabyte = store._stream.fileno(), 1 << 20
    first, second = os.pread(handle, megabyte, 0), os.pread(handle, megabyte, megabyte)
    os.pwrite(handle, second + first, 0)
    assert store.get("a") is None
    begin = store._places["b"].begin
    os.pwrite(handle, bytes(4096), begin + 8192)
    assert store.get("b") is None


def test_a_file_that_was_cut_off_is_found_and_ends_nothing(store):
    store.put("a", (400, 700), tiles(matrix(400, 700)))
    store._stream.truncate(1000)
    assert store.get("a") is None


def test_what_fails_halfway_leaves_the_rest_and_gives_its_room_back(store):
    def failing() -> Iterator[Tensor]:
        yield matrix(5, 700)
        raise KeyboardInterrupt

    store.put("a", (40, 700), tiles(matrix(40, 700)))
    with pytest.raises(KeyboardInterrupt):
        store.put("b", (400, 700), failing())
    assert "b" not in store and os.fstat(store._stream.fileno()).st_size == 40 * 700 * 4
    store.put("b", (40, 700), tiles(matrix(40, 700, 1)))
    for key, seed in (("a", 0), ("b", 1)):
        found = store.get(key)
        assert found is not None and found.equal(matrix(40, 700, seed))


def test_a_disk_that_must_stay_free_is_not_written(tmp_path):
    store = DiskStore(tmp_path, shutil.disk_usage(tmp_path).total * 2)
    with pytest.raises(OSError, match="would stay free") as caught:
        store.put("a", (4, 4), tiles(matrix(4, 4)))
    assert caught.value.errno == errno.ENOSPC and "a" not in store
    store.close()


LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import conftest, torch
from pathlib import Path
from lora_alloy.cache.disk import DiskStore
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
store = DiskStore(Path(sys.argv[2]), 0)
whole = torch.arange(1 << 17).float().view(512, 256)
store.put("a", (512, 256), iter(whole.split(64)))
try:
    store.put("b", (1024, 256), iter(whole.repeat(2, 1).split(64)))
except OSError as problem:
    print(problem.errno, store.get("a").equal(whole), "b" in store)
store.put("c", (512, 256), iter(whole.split(64)))
print(store.get("c").equal(whole))
"""


@posix_only
def test_a_limit_in_the_middle_of_a_write_is_an_error_and_the_rest_stays(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(Path(__file__).resolve().parents[1]), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(errno.EFBIG), "True", "False", "True"], done.stderr
    assert not list(tmp_path.iterdir())
