"""A file is written whole, or what stood there stays."""

import os

import pytest

from lora_alloy.core.errors import SaveError
from lora_alloy.core.wholefile import refuse_place, write_whole


def test_a_file_takes_its_place_whole(tmp_path):
    path = tmp_path / "a" / "b" / "file.txt"
    write_whole(path, [b"one ", memoryview(b"two")])
    assert path.read_bytes() == b"one two"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_check_replaces_nothing(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("precious")

    def check(written):
        assert written.read_bytes() == b"new" and written.parent == tmp_path
        raise ValueError("not good")

    with pytest.raises(ValueError, match="not good"):
        write_whole(path, [b"new"], check)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_while_it_is_made_replaces_nothing(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("precious")

    def pieces():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, pieces())
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_of_255_bytes_can_be_written(tmp_path):
    path = tmp_path / ("字" * 81 + ".safetensors")
    assert len(os.fsencode(path.name)) == 255
    write_whole(path, [b"x"])
    assert path.read_bytes() == b"x"


def test_places_that_take_no_file_are_known_beforehand(tmp_path):
    (tmp_path / "file").write_text("")
    locked = tmp_path / "locked"
    locked.write_text("")
    locked.chmod(0o444)
    for path, says in (
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "below", "is a file, so nothing can be written below it"),
        (locked, "is read-only"),
    ):
        with pytest.raises(SaveError, match=says):
            refuse_place(path)
    refuse_place(tmp_path / "new" / "deeper" / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "locked"]
