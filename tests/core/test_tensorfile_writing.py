"""Writing tensor files: what we write others read, and a failure leaves what stood there untouched."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lora_alloy.core import tensorfile
from lora_alloy.core.errors import ProofError, SaveError
from lora_alloy.core.tensorfile import DTYPES, open_tensors, write_tensors

OLD = b"what stood there before"


def values(dtype: torch.dtype) -> torch.Tensor:
    plain = torch.tensor([[0.0, 1.0, -1.5], [0.25, 3.0, -2.0]])
    if dtype is torch.bool:
        return plain > 0
    return plain.abs().to(dtype) if dtype is torch.uint8 else plain.to(dtype)


def bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("name", DTYPES)
def test_safetensors_reads_what_we_write_in_every_dtype(name, tmp_path):
    given = {"a": values(DTYPES[name]), "b.c": values(DTYPES[name])[:1], "scalar": values(DTYPES[name])[1, 1]}
    write_tensors(tmp_path / "x.safetensors", given, {"told": "yes", "été": 'ß\n"quoted"'})
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == given.keys()
    for key, value in given.items():
        assert found[key].dtype == value.dtype
        assert found[key].shape == value.shape
        assert bits(found[key]).equal(bits(value))
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() == {"told": "yes", "été": 'ß\n"quoted"'}


def test_we_read_what_we_write(tmp_path):
    given = {"b": torch.randn(3, 4), "a": torch.randn(2, 2, 3, 3).half(), "none": torch.zeros(0, 3)}
    write_tensors(tmp_path / "x.safetensors", given, {"k": "v"})
    file = open_tensors(tmp_path / "x.safetensors")
    assert list(file.infos) == ["b", "a", "none"]
    assert dict(file.metadata) == {"k": "v"}
    for key, value in given.items():
        assert file.read(key).equal(value)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0).reshape(3, 4)[:, ::2],
        torch.arange(3.0).expand(4, 3),
        torch.arange(12.0).reshape(3, 4)[1:2, 1:2],
    ],
    ids=["transposed", "every second", "expanded", "a corner"],
)
def test_tensors_need_not_lie_in_one_piece(value, tmp_path):
    write_tensors(tmp_path / "x.safetensors", {"a": value}, {})
    assert load_file(tmp_path / "x.safetensors")["a"].equal(value)


def test_one_tensor_may_stand_under_two_names(tmp_path):
    shared = torch.randn(3, 3)
    write_tensors(tmp_path / "x.safetensors", {"a": shared, "b": shared}, {})
    found = load_file(tmp_path / "x.safetensors")
    assert found["a"].equal(shared)
    assert found["b"].equal(shared)


def test_missing_folders_are_made(tmp_path):
    write_tensors(tmp_path / "a" / "b" / "x.safetensors", {"a": torch.ones(1)}, {})
    assert (tmp_path / "a" / "b" / "x.safetensors").exists()


def test_text_that_is_no_unicode_is_written_as_question_marks(tmp_path):
    """Half a surrogate pair: from a cut-off emoji in another file's header, or a file name in an old encoding."""
    write_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)}, {"trigger": "ink \ud83d"})
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() == {"trigger": "ink ?"}


def test_the_header_is_padded_so_that_tensors_are_aligned(tmp_path):
    for size in range(8):
        path = tmp_path / f"{size}.safetensors"
        write_tensors(path, {"a": torch.ones(2, dtype=torch.float64)}, {"k": "x" * size})
        assert open_tensors(path).infos["a"].begin % 8 == 0


def test_the_same_tensors_give_the_same_bytes(tmp_path):
    given = {"a": torch.randn(4, 4), "b": torch.randn(2)}
    for name in ("x", "y"):
        write_tensors(tmp_path / f"{name}.safetensors", given, {"k": "v"})
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()


def test_a_file_may_be_written_over_the_one_it_was_read_from(tmp_path):
    path = tmp_path / "x.safetensors"
    value = torch.randn(64, 64)
    write_tensors(path, {"a": value}, {})
    opened = open_tensors(path)
    write_tensors(path, {"b": opened.read("a")}, {})
    assert opened.read("a").equal(value)
    assert load_file(path)["b"].equal(value)


class Broken(torch.Tensor):
    """A tensor whose values cannot be had: what a lost device is to the writer."""

    def detach(self) -> torch.Tensor:
        raise RuntimeError("the device is gone")


def nothing_but_the_old_file_is_there(folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == ["x.safetensors"]
    assert (folder / "x.safetensors").read_bytes() == OLD


@pytest.mark.parametrize(
    "problem", [ProofError("no"), KeyboardInterrupt(), RuntimeError("no"), MemoryError()]
)
def test_a_failed_check_leaves_the_old_file_and_nothing_beside_it(problem, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(OLD)

    def check(path: Path) -> None:
        assert path.exists()
        assert (tmp_path / "x.safetensors").read_bytes() == OLD
        raise problem

    with pytest.raises(type(problem)):
        write_tensors(tmp_path / "x.safetensors", {"a": torch.ones(4)}, {}, check)
    nothing_but_the_old_file_is_there(tmp_path)


def test_a_failure_in_the_middle_of_writing_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(OLD)
    tensors = {"a": torch.ones(1 << 16), "b": torch.ones(4).as_subclass(Broken)}
    with pytest.raises(RuntimeError, match="device is gone"):
        write_tensors(tmp_path / "x.safetensors", tensors, {})
    nothing_but_the_old_file_is_there(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_a_sentence_and_leaves_the_old_file(code, call, tmp_path, monkeypatch):
    (tmp_path / "x.safetensors").write_bytes(OLD)

    def fails(*given: object) -> None:
        raise OSError(code, os.strerror(code))

    if call == "fsync":
        monkeypatch.setattr(tensorfile.os, "fsync", fails)
        tensors = {"a": torch.ones(4)}
    else:
        tensors = {"a": torch.ones(4).as_subclass(Broken)}
        monkeypatch.setattr(Broken, "detach", fails)
    with pytest.raises(
        SaveError, match=f"x.safetensors` cannot be written .{os.strerror(code)}.; nothing was"
    ):
        write_tensors(tmp_path / "x.safetensors", tensors, {})
    nothing_but_the_old_file_is_there(tmp_path)


def test_a_check_sees_the_whole_file_before_it_takes_its_place(tmp_path):
    seen: list[dict[str, torch.Tensor]] = []
    write_tensors(
        tmp_path / "x.safetensors", {"a": torch.ones(4)}, {}, lambda path: seen.append(load_file(path))
    )
    assert seen[0]["a"].equal(torch.ones(4))


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    with pytest.raises(SaveError, match="is a folder"):
        write_tensors(tmp_path / "x.safetensors", {"a": torch.ones(1)}, {})
    assert list(tmp_path.iterdir()) == [tmp_path / "x.safetensors"]


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(OLD)
    with pytest.raises(SaveError, match="is a file, so nothing can be written below it"):
        write_tensors(tmp_path / "a" / "x.safetensors", {"a": torch.ones(1)}, {})
    assert (tmp_path / "a").read_bytes() == OLD


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_read_only_is_refused(what, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(OLD)
    locked = path if what == "file" else tmp_path
    locked.chmod(0o444 if what == "file" else 0o555)
    try:
        if os.access(locked, os.W_OK):
            pytest.skip("this user may write to what is read-only")
        with pytest.raises(SaveError, match="is read-only|cannot be written"):
            write_tensors(path, {"a": torch.ones(1)}, {})
        assert path.read_bytes() == OLD
    finally:
        locked.chmod(0o755)
