"""Reading tensor files: what safetensors' own library writes, and what damage is called."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lora_alloy.core.errors import FileError
from lora_alloy.core.tensorfile import DTYPES, open_tensors, tensors_in_memory


def values(dtype: torch.dtype) -> torch.Tensor:
    """Every kind of number a dtype has, none of them special to it."""
    plain = torch.tensor([[0.0, 1.0, -1.5], [0.25, 3.0, -2.0]])
    if dtype is torch.bool:
        return plain > 0
    return plain.abs().to(dtype) if dtype is torch.uint8 else plain.to(dtype)


def raw_file(path: Path, header: object, body: bytes = b"", announced: int | None = None) -> Path:
    """A file with this header, whatever it says."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if announced is None else announced).to_bytes(8, "little") + raw + body)
    return path


def entry(begin: int, end: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize("name", DTYPES)
def test_what_safetensors_writes_is_read_in_every_dtype(name, tmp_path):
    given = {"a": values(DTYPES[name]), "b.c": values(DTYPES[name])[:1], "scalar": values(DTYPES[name])[1, 1]}
    save_file(given, tmp_path / "x.safetensors", {"told": "yes"})
    file = open_tensors(tmp_path / "x.safetensors")
    assert dict(file.metadata) == {"told": "yes"}
    assert file.size_bytes == (tmp_path / "x.safetensors").stat().st_size
    assert {name: (info.dtype, info.shape) for name, info in file.infos.items()} == {
        key: (name, tuple(value.shape)) for key, value in given.items()
    }
    for key, value in given.items():
        found = file.read(key)
        assert found.dtype == value.dtype
        assert found.shape == value.shape
        assert found.reshape(-1).view(torch.uint8).equal(value.reshape(-1).view(torch.uint8))


def test_tensors_that_lie_askew_are_read_all_the_same(tmp_path):
    """A header of odd length puts every tensor behind it at an odd address."""
    body = (
        torch.tensor([1.5, -2.0]).numpy().tobytes() + torch.tensor([7], dtype=torch.int64).numpy().tobytes()
    )
    header = {"a": entry(0, 8), "b": entry(8, 16, (1,), "I64")}
    for padding in range(9):
        raw = json.dumps(header).encode() + b" " * padding
        file = open_tensors(raw_file(tmp_path / f"{padding}.safetensors", raw, body))
        assert file.read("a").tolist() == [1.5, -2.0]
        assert file.read("b").tolist() == [7]


def test_tensors_without_entries_are_read(tmp_path):
    save_file({"none": torch.zeros(0, 4), "some": torch.ones(2)}, tmp_path / "x.safetensors")
    file = open_tensors(tmp_path / "x.safetensors")
    assert file.read("none").shape == (0, 4)
    assert file.read("some").tolist() == [1, 1]


def test_only_the_header_is_read_before_values_are_asked_for(tmp_path):
    """A file whose body is a hole of four gigabytes opens at once and takes no memory."""
    header = {"a": entry(0, 1 << 32, (1 << 30,)), "b": entry(1 << 32, (1 << 32) + 8)}
    path = raw_file(tmp_path / "x.safetensors", header)
    size = path.stat().st_size + (1 << 32)
    with path.open("r+b") as stream:
        stream.seek(size)
        stream.write(torch.tensor([1.0, 2.0]).numpy().tobytes())
    file = open_tensors(path)
    assert file.read("b").tolist() == [1.0, 2.0]


def test_what_is_read_cannot_reach_the_file(tmp_path):
    save_file({"a": torch.ones(4)}, tmp_path / "x.safetensors")
    before = (tmp_path / "x.safetensors").read_bytes()
    open_tensors(tmp_path / "x.safetensors").read("a").mul_(0)
    assert (tmp_path / "x.safetensors").read_bytes() == before


def test_metadata_that_are_not_strings_are_left_out(tmp_path):
    header = {"__metadata__": {"a": "b", "c": 3, "d": None, "e": ["f"]}, "t": entry(0, 8)}
    assert dict(open_tensors(raw_file(tmp_path / "x.safetensors", header, bytes(8))).metadata) == {"a": "b"}


@pytest.mark.parametrize("metadata", [None, {}], ids=str)
def test_empty_metadata_are_no_metadata(metadata, tmp_path):
    header = {"__metadata__": metadata, "t": entry(0, 8)}
    assert dict(open_tensors(raw_file(tmp_path / "x.safetensors", header, bytes(8))).metadata) == {}


def test_an_unknown_dtype_is_named_when_its_values_are_asked_for(tmp_path):
    header = {"odd": entry(0, 8, dtype="F4"), "plain": entry(8, 16)}
    file = open_tensors(raw_file(tmp_path / "x.safetensors", header, bytes(16)))
    assert file.read("plain").tolist() == [0, 0]
    with pytest.raises(FileError, match="`odd` of `.*` is stored as F4"):
        file.read("odd")


def test_a_file_that_changes_under_our_hands_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(4)}, path)
    file = open_tensors(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FileError, match="changed while it was being read"):
        file.read("a")


SOUND = {"a": entry(0, 8), "b": entry(8, 16)}
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "seven bytes": (lambda path: path.write_bytes(b"1234567"), "has 7 bytes"),
    "an HTML page": (lambda path: path.write_text("\n <!DOCTYPE html><html>…"), "is a web page"),
    "bare HTML": (lambda path: path.write_text("<html><body>Log in</body></html>"), "is a web page"),
    "XML": (
        lambda path: path.write_text('<?xml version="1.0"?><Error>AccessDenied</Error>'),
        "is a web page",
    ),
    "a Git-LFS pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 9\n"),
        "git lfs pull",
    ),
    "a zip": (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(40)), "is a zip archive"),
    "a gzip": (lambda path: path.write_bytes(b"\x1f\x8b" + bytes(40)), "is a compressed archive"),
    "a GGUF model": (lambda path: path.write_bytes(b"GGUF" + bytes(40)), "is a GGUF model"),
    "a pickle": (lambda path: path.write_bytes(b"\x80\x04\x95" + bytes(40)), "is a Python pickle"),
    "an old pickle": (lambda path: path.write_bytes(b"\x80\x02}q\x00." + bytes(40)), "is a Python pickle"),
    "a header longer than the file": (
        lambda path: raw_file(path, SOUND, bytes(16), 10_000),
        "announces a header",
    ),
    "a header of exabytes": (lambda path: raw_file(path, SOUND, bytes(16), 1 << 62), "announces a header"),
    "a cut body": (
        lambda path: raw_file(path, SOUND, bytes(12)),
        "`b` ends 4 bytes behind the end of the file",
    ),
    "a cut header": (
        lambda path: raw_file(path, json.dumps(SOUND).encode()[:-9]),
        "not a sound safetensors file",
    ),
    "a header that is a list": (lambda path: raw_file(path, [1, 2]), "the header is not an object"),
    "a header that is not text": (
        lambda path: raw_file(path, b"\xff\xfe{}" * 4),
        "not a sound safetensors file",
    ),
    "a nested header": (lambda path: raw_file(path, b"[" * 200_000), "nested beyond reason|not a sound"),
    "overlapping offsets": (
        lambda path: raw_file(path, {"a": entry(0, 8), "b": entry(4, 12)}, bytes(16)),
        "`a` and `b` overlap",
    ),
    "one tensor inside another": (
        lambda path: raw_file(path, {"a": entry(0, 16, (4,)), "b": entry(4, 8, (1,))}, bytes(16)),
        "`a` and `b` overlap",
    ),
    "an end before its beginning": (
        lambda path: raw_file(path, {"a": entry(8, 0)}, bytes(16)),
        "`a` ends before it begins",
    ),
    "a negative beginning": (
        lambda path: raw_file(path, {"a": entry(-8, 0)}, bytes(16)),
        "ends before it begins",
    ),
    "a shape that does not fill its bytes": (
        lambda path: raw_file(path, {"a": entry(0, 8, (3,))}, bytes(8)),
        "does not fill its 8 bytes",
    ),
    "a negative size": (lambda path: raw_file(path, {"a": entry(0, 8, (-1, -2))}, bytes(8)), "has the shape"),
    "a size that is no number": (
        lambda path: raw_file(path, {"a": {**entry(0, 8), "shape": ["2"]}}, bytes(8)),
        "has the shape",
    ),
    "a size that is true": (
        lambda path: raw_file(path, {"a": {**entry(0, 4), "shape": [True]}}, bytes(8)),
        "has the shape",
    ),
    "offsets that are no numbers": (
        lambda path: raw_file(path, {"a": {**entry(0, 8), "data_offsets": [0.0, 8.0]}}, bytes(8)),
        "has the offsets",
    ),
    "three offsets": (
        lambda path: raw_file(path, {"a": {**entry(0, 8), "data_offsets": [0, 4, 8]}}, bytes(8)),
        "has the offsets",
    ),
    "an entry without offsets": (
        lambda path: raw_file(path, {"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        "lacks dtype, shape or offsets",
    ),
    "an entry that is a number": (
        lambda path: raw_file(path, {"a": 5}, bytes(8)),
        "lacks dtype, shape or offsets",
    ),
    "a name twice": (
        lambda path: raw_file(path, b'{"a":%s,"a":%s}' % ((json.dumps(entry(0, 8)).encode(),) * 2), bytes(8)),
        "a name stands twice",
    ),
    "metadata that are a list": (
        lambda path: raw_file(path, {"__metadata__": ["x"], "a": entry(0, 8)}, bytes(8)),
        "the metadata are not an object",
    ),
}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_called_by_its_name_in_one_sentence_about_the_file(damage, sentence, tmp_path):
    path = tmp_path / "ink.safetensors"
    damage(path)
    with pytest.raises(FileError, match=sentence) as problem:
        open_tensors(path)
    assert "ink.safetensors" in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(FileError, match="does not exist"):
        open_tensors(tmp_path / "none.safetensors")
    with pytest.raises(FileError, match="is a folder"):
        open_tensors(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be opened"):
        open_tensors(tmp_path / "file" / "below.safetensors")


@pytest.mark.parametrize("typed", ["ink-wash", "ink-wash.safetensor", "ink_wash.safetensors"])
def test_the_name_that_was_meant_is_offered(tmp_path, typed):
    for name in ("ink-wash.safetensors", "ink-wash.png", "portrait.safetensors"):
        (tmp_path / name).write_text("")
    with pytest.raises(FileError, match=r"did you mean `ink-wash\.safetensors`\?$"):
        open_tensors(tmp_path / typed)
    with pytest.raises(FileError, match=r"check the name and the folder\.$"):
        open_tensors(tmp_path / "none" / typed)


def test_tensors_that_somebody_trains_are_read_as_plain_values():
    """As they come from another node; a GPU's would come to the CPU the same way."""
    given = torch.ones(2, 3, requires_grad=True)
    found = tensors_in_memory(Path("ink"), {"a": given * 2}, {}).read("a")
    assert not found.requires_grad and found.device.type == "cpu"
    assert found.tolist() == [[2.0] * 3] * 2


def test_half_a_character_in_a_name_is_damage(tmp_path):
    header = b'{"a\\ud83c.lora_up.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'
    with pytest.raises(FileError, match="is not a sound safetensors file"):
        open_tensors(raw_file(tmp_path / "x.safetensors", header, bytes(8)))


@pytest.mark.parametrize("name", ["a\0b.safetensors", "\ud83c.safetensors"])
def test_a_name_that_no_file_can_have_is_a_sentence(name, tmp_path):
    with pytest.raises(FileError, match="is no name that a file can have"):
        open_tensors(tmp_path / name)


def test_reading_leaves_no_file_open(tmp_path):
    save_file({"a": torch.ones(3)}, tmp_path / "x.safetensors")
    file = open_tensors(tmp_path / "x.safetensors")
    assert file.read("a").tolist() == [1, 1, 1]
    file.release()
    assert file.read("a").tolist() == [1, 1, 1]
