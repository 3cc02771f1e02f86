"""Private folders: the dead's are removed, the living's are not, whatever happens in between."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lora_alloy.cache import folder as module
from lora_alloy.cache.folder import LOCK, PREFIX, PrivateFolder, remove_leftovers

HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
import conftest
from pathlib import Path
from lora_alloy.cache.folder import PrivateFolder
held = PrivateFolder(Path(sys.argv[2]))
print(held.path, flush=True)
sys.stdin.readline()
"""
TESTS = Path(__file__).resolve().parents[1]


def holder(above: Path) -> subprocess.Popen[str]:
    """A process that holds a folder until it is ended or spoken to."""
    command = [sys.executable, "-c", HOLDER, str(TESTS), str(above)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_folder_is_this_users_alone_and_goes_when_it_is_closed(tmp_path):
    private = PrivateFolder(tmp_path)
    assert private.path.parent == tmp_path and private.path.name.startswith(PREFIX)
    if os.name == "posix":
        assert private.path.stat().st_mode & 0o777 == 0o700
    (private.path / "left.bin").write_bytes(b"left")
    private.close()
    private.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_nobody_closed_goes_with_the_object(tmp_path):
    private = PrivateFolder(tmp_path)
    assert private.path.is_dir()
    del private
    assert not list(tmp_path.iterdir())


def test_the_living_keep_theirs_and_the_dead_do_not(tmp_path):
    with holder(tmp_path) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        own = PrivateFolder(tmp_path)
        assert remove_leftovers(tmp_path) == 0
        assert theirs.is_dir() and own.path.is_dir()
        other.kill()
        other.wait()
        assert theirs.is_dir()
        assert remove_leftovers(tmp_path) == 1
        assert not theirs.exists() and own.path.is_dir()
        own.close()
    assert not list(tmp_path.iterdir())


def test_two_of_one_process_exclude_each_other(tmp_path):
    first = PrivateFolder(tmp_path)
    second = PrivateFolder(tmp_path)
    assert first.path.is_dir() and second.path.is_dir() and first.path != second.path
    first.close()
    assert second.path.is_dir() and remove_leftovers(tmp_path) == 0
    second.close()


def test_what_is_no_folder_of_ours_is_left_alone(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / LOCK).write_bytes(b"")
    (tmp_path / f"{PREFIX}file").write_bytes(b"somebody's")
    full = tmp_path / f"{PREFIX}without-lock"
    full.mkdir()
    (full / "somebody's").write_bytes(b"")
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / f"{PREFIX}empty").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    assert remove_leftovers(tmp_path) == 1
    assert before - {path.name for path in tmp_path.iterdir()} == {f"{PREFIX}empty"}
    assert (tmp_path / "elsewhere" / LOCK).exists() and (full / "somebody's").exists()


def test_a_folder_that_is_not_there_has_no_leftovers(tmp_path):
    assert remove_leftovers(tmp_path / "nowhere") == 0
    with pytest.raises(OSError):
        PrivateFolder(tmp_path / "nowhere")


@pytest.mark.parametrize("moment", ["no lock yet", "lock not held yet"])
def test_whoever_tidies_up_while_a_folder_is_made_does_not_spoil_it(moment, tmp_path, monkeypatch):
    """The other one comes at the worst moment, once: the maker tries again."""
    came = []

    def tidy() -> None:
        if not came:
            came.append(remove_leftovers(tmp_path))

    made, locked = module.tempfile.mkdtemp, module._is_locked

    def making(**where: object) -> str:
        name = made(**where)
        if moment == "no lock yet":
            tidy()
        return name

    def locking(lock: object) -> bool:
        if moment == "lock not held yet" and not came:
            came.append(0)
            came[0] = remove_leftovers(tmp_path)
        return locked(lock)

    monkeypatch.setattr(module.tempfile, "mkdtemp", making)
    monkeypatch.setattr(module, "_is_locked", locking)
    private = PrivateFolder(tmp_path)
    assert came == [1]
    assert [path.name for path in private.path.iterdir()] == [LOCK]
    assert remove_leftovers(tmp_path) == 0
    private.close()
    assert not list(tmp_path.iterdir())
