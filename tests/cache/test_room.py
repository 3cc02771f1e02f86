"""How much is free, as the system says it."""

from pathlib import Path

import pytest

from lora_alloy.cache import room
from lora_alloy.cache.room import free_disk, free_memory, is_in_memory, temporary_folder


def test_some_memory_and_disk_are_free(tmp_path):
    free = free_memory()
    assert free is None or 1 << 20 < free < 1 << 50
    assert 0 < free_disk(tmp_path) < 1 << 60
    with pytest.raises(OSError):
        free_disk(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"memory.max": "max\n", "memory.current": "5\n", "memory.stat": ""}, None),
        (
            {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": "anon 1\ninactive_file 200\n"},
            500,
        ),
        ({"memory.max": "1000\n", "memory.current": "1200\n", "memory.stat": "anon 9\n"}, 0),
        (
            {
                "memory/memory.limit_in_bytes": "1000\n",
                "memory/memory.usage_in_bytes": "900\n",
                "memory/memory.stat": "total_inactive_file 50\n",
            },
            150,
        ),
    ],
    ids=["no container", "no limit", "a limit", "over it", "the old way"],
)
def test_a_containers_limit_counts(files, expected, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert room._container(tmp_path) == expected
    if expected is not None:
        monkeypatch.setattr(room, "_container", lambda: expected)
        assert free_memory() == expected


def test_the_deepest_mount_says_whether_a_folder_takes_memory(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/sdb /tmp/on\\040disk ext4 rw 0 0\n"
        "tmpfs /hidden tmpfs rw 0 0\n/dev/sdc /hidden ext4 rw 0 0\n"
    )
    cases = {"/tmp": True, "/tmp/x/y": True, "/tmpx": False, "/tmp/on disk/x": False, "/home": False}
    for where, expected in {**cases, "/hidden/x": False}.items():
        assert is_in_memory(Path(where), mounts) is expected, where
    assert is_in_memory(Path("/tmp"), tmp_path / "nowhere") is False


def test_large_files_go_where_the_disk_is(monkeypatch):
    usual = Path(room.tempfile.gettempdir())
    monkeypatch.setattr(room, "is_in_memory", lambda folder: False)
    assert temporary_folder() == usual
    monkeypatch.setattr(room, "is_in_memory", lambda folder: folder == usual)
    assert temporary_folder() == (Path("/var/tmp") if Path("/var/tmp").is_dir() else usual)
