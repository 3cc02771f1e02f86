"""A store keeps entries whole, apart, checked, within its limit, and never makes its own trouble the user's."""

import errno
import json
import os
import time
from pathlib import Path

import pytest
import torch

from lora_alloy.cache import entries, store
from lora_alloy.cache.places import default_folder, default_limit
from lora_alloy.cache.store import MODES, Store
from lora_alloy.core.errors import RecipeError

KEY = {"content": "ab", "strength": 0.7, "targets": [["q", [4, 6]]]}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)


def tensors() -> dict[str, torch.Tensor]:
    made = {str(dtype): (torch.arange(24) % 5).reshape(4, 6).to(dtype) for dtype in DTYPES}
    return {**made, "empty": torch.empty(0, 3), "one": torch.tensor(-0.0), "turned": torch.rand(5, 7).T}


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        value.dtype == expected[name].dtype
        and value.shape == expected[name].shape
        and value.contiguous().reshape(-1).view(torch.uint8).tolist()
        == expected[name].contiguous().reshape(-1).view(torch.uint8).tolist()
        for name, value in found.items()
    )


def test_a_value_comes_back_after_a_restart(tmp_path):
    value = {"methods": ["ties", None, True], "score": 0.1, "é": {"deep": [1, -0.0, 1e-300]}}
    assert Store(tmp_path).put_json("tuning", KEY, value)
    assert Store(tmp_path).get_json("tuning", KEY) == value


def test_tensors_come_back_to_the_bit(tmp_path):
    given = tensors()
    assert Store(tmp_path).put_tensors("result", KEY, {"n": 3}, given)
    found = Store(tmp_path).get_tensors("result", KEY)
    assert found is not None and found[0] == {"n": 3}
    assert same(found[1], given)


def test_the_order_of_a_key_is_free_and_everything_in_it_counts(tmp_path):
    kept = Store(tmp_path)
    kept.put_json("tuning", KEY, 1)
    assert kept.get_json("tuning", dict(reversed(KEY.items()))) == 1
    for name, other in (("content", "aB"), ("strength", 0.7000000000000001), ("targets", [["q", [6, 4]]])):
        assert kept.get_json("tuning", {**KEY, name: other}) is None
        assert kept.get_json("tuning", {one: what for one, what in KEY.items() if one != name}) is None
    assert kept.get_json("other", KEY) is None
    assert kept.get_tensors("tuning", KEY) is None


def test_json_takes_the_place_of_json(tmp_path):
    kept = Store(tmp_path)
    assert kept.put_json("tuning", KEY, 1) and kept.put_json("tuning", KEY, 2)
    assert kept.get_json("tuning", KEY) == 2


def test_what_is_not_finite_is_a_mistake_of_the_caller(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        Store(tmp_path).put_json("tuning", KEY, float("nan"))
    with pytest.raises(ValueError, match="JSON"):
        Store(tmp_path).get_json("tuning", {"x": float("inf")})
    assert not files(tmp_path)


@pytest.mark.parametrize("kind", ["", "A", "../x", "writing", "a b"])
def test_a_kind_is_a_plain_word(kind, tmp_path):
    with pytest.raises(ValueError, match="kind"):
        Store(tmp_path).put_json(kind, KEY, 1)


def test_an_unknown_mode_is_named(tmp_path):
    with pytest.raises(RecipeError, match="Did you mean 'auto'"):
        Store(tmp_path, mode="autto")
    assert set(MODES) == {"disabled", "read_only", "auto", "auto_ignore_strength", "clear_and_run"}


def test_disabled_touches_nothing(tmp_path):
    Store(tmp_path).put_json("tuning", KEY, 1)
    (tmp_path / "v1" / "writing" / f"{'0' * 16}.tmp").write_bytes(b"left")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files(tmp_path)}
    off = Store(tmp_path, mode="disabled")
    assert off.get_json("tuning", KEY) is None and off.get_tensors("result", KEY) is None
    assert not off.put_json("tuning", KEY, 2) and not off.put_tensors("result", KEY, 2, {})
    assert off.clear() == 0 and off.sizes() == {} and off.notes == []
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files(tmp_path)} == before
    nowhere = tmp_path / "nowhere"
    Store(nowhere, mode="disabled").put_json("tuning", KEY, 1)
    assert not nowhere.exists()


def test_read_only_reads_and_changes_nothing(tmp_path):
    Store(tmp_path).put_json("tuning", KEY, 1)
    damaged = tmp_path / "v1" / "tuning" / f"{'1' * 64}.json"
    damaged.write_text("{")
    (tmp_path / "v1" / "writing" / f"{'0' * 16}.tmp").write_bytes(b"left")
    before = {path: path.stat() for path in tmp_path.rglob("*")}
    only = Store(tmp_path, mode="read_only")
    assert only.get_json("tuning", KEY) == 1
    assert not only.put_json("tuning", {"x": 1}, 2) and not only.put_tensors("result", KEY, 2, {})
    assert only.clear() == 0
    assert {
        path: (told.st_mtime_ns, told.st_size) for path, told in ((p, p.stat()) for p in tmp_path.rglob("*"))
    } == {path: (told.st_mtime_ns, told.st_size) for path, told in before.items()}


def test_clear_and_run_forgets_what_it_is_asked_for_and_knows_what_it_wrote(tmp_path):
    first = Store(tmp_path)
    for number in range(3):
        first.put_json("tuning", {"n": number}, number)
    first.put_tensors("result", KEY, {}, tensors())
    again = Store(tmp_path, mode="clear_and_run")
    assert again.get_json("tuning", {"n": 0}) is None and again.get_tensors("result", KEY) is None
    assert again.get_json("tuning", {"n": 0}) is None
    assert again.put_json("tuning", {"n": 0}, 7) and again.get_json("tuning", {"n": 0}) == 7
    later = Store(tmp_path)
    assert [later.get_json("tuning", {"n": number}) for number in range(3)] == [7, 1, 2]
    assert later.get_tensors("result", KEY) is None


def spoilt(data: bytes) -> dict[str, bytes]:
    """Ways in which a file may be damaged."""
    middle, last = len(data) // 2, len(data) - 3
    return {
        "empty": b"",
        "cut": data[:middle],
        "cut at its end": data[:-1],
        "zeros": bytes(len(data)),
        "a bit in its middle": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "a bit near its end": data[:last] + bytes([data[last] ^ 64]) + data[last + 1 :],
        "no JSON": b"[" * 100_000,
        "JSON of another kind": b'{"value":3}',
        "longer": data[:middle] + b"x" + data[middle:],
    }


@pytest.mark.parametrize("how", spoilt(bytes(8)))
@pytest.mark.parametrize("kind", ["tuning", "result"])
def test_a_damaged_entry_is_made_anew(kind, how, tmp_path):
    def get(where: Store) -> object:
        return where.get_json(kind, KEY) if kind == "tuning" else where.get_tensors(kind, KEY)

    def put(where: Store) -> bool:
        if kind == "tuning":
            return where.put_json(kind, KEY, {"a": [1, 2, 3]})
        return where.put_tensors(kind, KEY, {"a": 1}, tensors())

    put(Store(tmp_path))
    (path,) = files(tmp_path)
    path.write_bytes(spoilt(path.read_bytes())[how])
    only = Store(tmp_path, mode="read_only")
    assert get(only) is None and len(only.notes) == 1 and path.exists()
    kept = Store(tmp_path)
    assert get(kept) is None and len(kept.notes) == 1 and "damaged" in kept.notes[0]
    assert not path.exists()
    assert put(kept) and get(kept) is not None


def test_an_entry_under_another_ones_name_is_not_believed(tmp_path):
    kept = Store(tmp_path)
    for number in (1, 2):
        kept.put_json("tuning", {"n": number}, number)
        kept.put_tensors("result", {"n": number}, number, {"x": torch.ones(number)})
    for suffix in (entries.JSON, entries.TENSORS):
        one, other = (path for path in files(tmp_path) if path.suffix == suffix)
        other.write_bytes(one.read_bytes())
    assert sorted(map(str, (kept.get_json("tuning", {"n": n}) for n in (1, 2)))) in (
        ["1", "None"],
        ["2", "None"],
    )
    assert sum(kept.get_tensors("result", {"n": n}) is None for n in (1, 2)) == 1


def test_what_was_used_longest_ago_goes_first(tmp_path):
    kept = Store(tmp_path, limit_bytes=5500)
    for number in range(5):
        kept.put_tensors("result", {"n": number}, number, {"x": torch.zeros(700, dtype=torch.uint8)})
        for path in files(tmp_path):
            if path.stat().st_mtime > time.time() - 50:
                os.utime(path, (time.time() - 1000 + number,) * 2)
    assert kept.sizes()["result"][0] == 5
    assert kept.get_tensors("result", {"n": 0}) is not None  # so that 1 is the oldest now
    again = Store(tmp_path, limit_bytes=5500)
    again.put_tensors("result", {"n": 5}, 5, {"x": torch.zeros(700, dtype=torch.uint8)})
    left = [n for n in range(6) if again.get_tensors("result", {"n": n}) is not None]
    assert 0 in left and 5 in left and 1 not in left and left[1:] == list(range(left[1], 6))
    assert sum(size for _, size in again.sizes().values()) <= 5500


def test_the_limit_holds_for_many_small_entries(tmp_path):
    kept = Store(tmp_path, limit_bytes=20_000)
    for number in range(200):
        assert kept.put_json("tuning", {"n": number}, "x" * 300)
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 20_000
    assert kept.get_json("tuning", {"n": 199}) == "x" * 300


def test_what_is_larger_than_the_limit_is_not_kept_and_drives_nothing_out(tmp_path):
    kept = Store(tmp_path, limit_bytes=2000)
    kept.put_json("tuning", KEY, 1)
    assert not kept.put_tensors("result", KEY, {}, {"x": torch.zeros(3000, dtype=torch.uint8)})
    assert kept.get_json("tuning", KEY) == 1
    assert len(kept.notes) == 1 and "limited" in kept.notes[0]


def test_other_peoples_files_in_the_folder_stay(tmp_path):
    kept = Store(tmp_path, limit_bytes=3000)
    kept.put_json("tuning", KEY, 1)
    others = [
        tmp_path / "lora.safetensors",
        tmp_path / "v1" / "notes.txt",
        tmp_path / "v1" / "tuning" / "mine.json",
        tmp_path / "v1" / "writing" / "mine.tmp",
        tmp_path / "v1" / "Mine" / f"{'0' * 64}.json",
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine" * 2000)
    for number in range(20):
        kept.put_json("tuning", {"n": number}, "x" * 500)
    assert kept.clear() > 0
    assert files(tmp_path) == sorted(others) and kept.sizes() == {}


def test_a_disk_that_is_almost_full_gets_no_more(tmp_path, monkeypatch):
    kept = Store(tmp_path)
    kept.put_json("tuning", {"n": 1}, 1)
    usage = store.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage._replace(free=store.FREE - 10**6))
    assert not kept.put_json("tuning", {"n": 2}, 2)
    assert "almost full" in kept.notes[0]
    assert kept.get_json("tuning", {"n": 2}) is None


class FullDisk:
    """Breaks the n-th write of a store as a full disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, code: int = errno.ENOSPC) -> None:
        self.left, self.code, self.write = number, code, store._write
        monkeypatch.setattr(store, "_write", self)

    def __call__(self, stream, piece):
        self.left -= 1
        if self.left < 0:
            stream.write(memoryview(piece)[: len(piece) // 2])
            raise OSError(self.code, os.strerror(self.code))
        self.write(stream, piece)


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_disk_costs_a_note_and_leaves_nothing(number, code, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        kept = Store(tmp_path)
        FullDisk(patch, number, code)
        assert not kept.put_tensors("result", KEY, {}, tensors())
        assert not kept.put_json("tuning", KEY, 1)
        assert len(kept.notes) == 1 and os.strerror(code) in kept.notes[0]
    assert not files(tmp_path)
    assert Store(tmp_path).get_tensors("result", KEY) is None


@pytest.mark.parametrize("what", ["mkdir", "replace", "unlink"])
def test_a_folder_that_takes_nothing_costs_a_note(what, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    other = Store(tmp_path)
    other.put_json("tuning", KEY, 1)
    other.put_json("tuning", {"n": 1}, 1)
    (tmp_path / "v1" / "tuning" / f"{entries.digest({'n': 1})}.json").write_text("damaged")
    kept = Store(tmp_path)
    monkeypatch.setattr(Path, what, refuse)
    assert kept.get_json("tuning", {"n": 1}) is None
    assert kept.get_json("tuning", KEY) == 1
    assert not kept.put_json("tuning", {"n": 2}, 2)
    assert any("Permission denied" in note for note in kept.notes)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_read(tmp_path):
    Store(tmp_path).put_json("tuning", KEY, 1)
    folders = [tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    kept = Store(tmp_path)
    assert kept.get_json("tuning", KEY) == 1
    assert not kept.put_json("tuning", {"n": 2}, 2) and len(kept.notes) == 1
    assert kept.sizes()["tuning"][0] == 1 and kept.clear() == 0
    for folder in reversed(folders):
        folder.chmod(0o000)
    kept = Store(tmp_path)
    assert kept.get_json("tuning", KEY) is None and not kept.put_tensors("result", KEY, 2, {})
    assert kept.sizes() == {} and kept.clear() == 0 and kept.notes
    for folder in folders:
        folder.chmod(0o700)


def test_a_folder_that_is_a_file_costs_a_note(tmp_path):
    (tmp_path / "cache").write_text("mine")
    kept = Store(tmp_path / "cache")
    assert kept.get_json("tuning", KEY) is None and not kept.put_json("tuning", KEY, 1)
    assert len(kept.notes) == 1 and kept.sizes() == {} and kept.clear() == 0
    assert (tmp_path / "cache").read_text() == "mine"


def test_a_folder_that_cannot_be_listed_costs_a_note(tmp_path, monkeypatch):
    def refuse(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    Store(tmp_path).put_json("tuning", KEY, 1)
    monkeypatch.setattr(store.os, "scandir", refuse)
    kept = Store(tmp_path)
    assert kept.get_json("tuning", KEY) == 1
    assert kept.sizes() == {} and "cannot be read" in kept.notes[-1]
    assert not kept.put_json("tuning", {"n": 2}, 2)
    assert Store(tmp_path).clear() == 0


def test_entries_are_files_that_others_can_read(tmp_path):
    from safetensors import safe_open

    kept = Store(tmp_path)
    kept.put_json("tuning", KEY, {"a": 1})
    kept.put_tensors("result", KEY, {"b": 2}, tensors())
    made = {path.suffix: path for path in files(tmp_path)}
    assert json.loads(made[".json"].read_text())["value"] == {"a": 1}
    with safe_open(made[".safetensors"], "pt") as opened:
        assert json.loads(opened.metadata()["value"]) == {"b": 2}
        assert set(opened.keys()) == set(tensors())


def test_the_folder_is_the_platforms_unless_it_is_named(tmp_path):
    assert default_folder({"LORA_ALLOY_CACHE": str(tmp_path)}) == tmp_path
    assert "lora-alloy" in default_folder({}).parts
    if os.name == "posix" and os.uname().sysname == "Linux":
        assert default_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/lora-alloy/memory")
    assert default_limit({}) == store.LIMIT and default_limit({"LORA_ALLOY_CACHE_GB": "1.5"}) == 3 << 29
    for text in ("much", "-1", "nan"):
        with pytest.raises(RecipeError, match="LORA_ALLOY_CACHE_GB"):
            default_limit({"LORA_ALLOY_CACHE_GB": text})
