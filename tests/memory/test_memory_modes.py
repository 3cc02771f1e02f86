"""Modes, mishaps and tuning: what is read, what is written, and that nothing of it is the merge's trouble."""

from dataclasses import replace

import pytest

from lora_alloy import api
from lora_alloy.api import merge, plan
from lora_alloy.cache.store import Store
from lora_alloy.core.errors import SaveError
from lora_alloy.lora.file import open_lora
from lora_alloy.memory import Memory
from lora_alloy.memory import memory as remembering
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY
from lora_alloy_testing.remembered import Counted, assert_same, stack


def test_a_plan_that_is_replayed_is_not_looked_up(paths, kept):
    decided = plan(stack(paths))
    assert not merge(stack(paths), decided, memory=Store(kept)).is_recalled
    assert not merge(stack(paths), decided, memory=Store(kept)).is_recalled
    assert "result" not in Store(kept).sizes()


def test_disabled_touches_nothing(paths, kept):
    for _ in range(2):
        assert not merge(stack(paths), memory=Store(kept, mode="disabled")).is_recalled
    assert not kept.exists()


def test_read_only_finds_and_adds_nothing(paths, kept):
    merge(stack(paths), memory=Store(kept, mode="read_only"))
    assert not kept.exists()
    merge(stack(paths), memory=Store(kept))
    before = Store(kept).sizes()
    assert merge(stack(paths), memory=Store(kept, mode="read_only")).is_recalled
    merge(stack(paths[:2]), memory=Store(kept, mode="read_only"))
    assert Store(kept).sizes() == before


def test_strengths_are_never_ignored_in_a_result(paths, kept):
    merge(stack(paths), memory=Store(kept, mode="auto_ignore_strength"))
    louder = stack(paths, (1.0, 0.8, -0.6))
    found = merge(louder, memory=Store(kept, mode="auto_ignore_strength"))
    assert not found.is_recalled
    assert_same(found, merge(louder))


def test_clear_and_run_makes_all_of_a_stack_anew(paths, kept, monkeypatch):
    merge(stack(paths), memory=Store(kept))
    merge(stack(paths[:2]), memory=Store(kept))
    before = Store(kept).sizes()
    counted = Counted(monkeypatch)
    found = merge(stack(paths), memory=Store(kept, mode="clear_and_run"))
    assert not found.is_recalled and sorted(counted.targets) == sorted(target for target, _ in TOY.values())
    assert Store(kept).sizes() == before
    assert merge(stack(paths[:2]), memory=Store(kept)).is_recalled
    assert merge(stack(paths), memory=Store(kept)).is_recalled


def test_damaged_entries_are_made_anew_and_told(paths, kept):
    expected = merge(stack(paths), memory=Store(kept))
    entries = [path for path in kept.rglob("*") if path.suffix in (".json", ".safetensors")]
    for path in entries:
        data = bytearray(path.read_bytes())
        data[-5] ^= 4
        path.write_bytes(data)
    store = Store(kept)
    found = merge(stack(paths), memory=store)
    assert not found.is_recalled and store.notes
    assert_same(found, expected)
    store = Store(kept)
    assert merge(stack(paths), memory=store).is_recalled and not store.notes


def test_a_program_that_changed_remembers_nothing(paths, kept, monkeypatch):
    merge(stack(paths), memory=Store(kept))
    with monkeypatch.context() as patch:
        patch.setattr(remembering, "is_changed", lambda: True)
        store = Store(kept)
        assert not merge(stack(paths), memory=store).is_recalled
        assert "changed after it was started" in store.notes[0]
    monkeypatch.setattr(remembering, "program", lambda: "another version")
    assert not merge(stack(paths), memory=Store(kept)).is_recalled


def test_a_cancelled_merge_remembers_no_result(paths, kept):
    class CancelledError(Exception):
        pass

    def cancel(what: str, done: int, total: int) -> None:
        if what == "merge" and done == 2:
            raise CancelledError

    with pytest.raises(CancelledError):
        merge(stack(paths), memory=Store(kept), progress=cancel)
    assert "result" not in Store(kept).sizes()
    assert_same(merge(stack(paths), memory=Store(kept)), merge(stack(paths)))


def test_a_hit_tells_its_progress_and_may_be_cancelled(paths, kept):
    merge(stack(paths), memory=Store(kept))
    told: list[tuple[str, int, int]] = []
    merge(stack(paths), memory=Store(kept), progress=lambda *one: told.append(one))
    assert told and all(done == total == len(TOY) for _, done, total in told)


def test_tuning_goes_by_stack_recipe_and_settings(paths, kept):
    def keys(memory: Memory, strengths=(1.0, 0.8, -0.5), recipe=None, settings=None):
        built = api.stack_of(stack(paths, strengths))
        return memory.tuning_keys(built, recipe or Recipe(), settings or {"top_n": 3})

    memory = Memory(Store(kept))
    memory.keep_tuning(keys(memory), {"best": [1, 2]})
    for mode, louder in (("auto", None), ("auto_ignore_strength", {"best": [1, 2]})):
        memory = Memory(Store(kept / "x" if mode == "x" else kept, mode=mode))
        assert memory.recall_tuning(keys(memory)) == {"best": [1, 2]}
        assert memory.recall_tuning(keys(memory, (0.9, 0.9, -0.1))) == louder
        assert memory.recall_tuning(keys(memory, (1.0, -0.8, -0.5))) is None
        assert memory.recall_tuning(keys(memory, recipe=Recipe(seed=1))) is None
        assert memory.recall_tuning(keys(memory, settings={"top_n": 4})) is None
    # What was found at other strengths is known at these from then on.
    memory = Memory(Store(kept))
    assert memory.recall_tuning(keys(memory, (0.9, 0.9, -0.1))) == {"best": [1, 2]}
    memory = Memory(Store(kept, mode="clear_and_run"))
    assert memory.recall_tuning(keys(memory)) is None
    memory = Memory(Store(kept, mode="auto_ignore_strength"))
    assert memory.recall_tuning(keys(memory)) is None
    store = Store(kept)
    Memory(store).keep_tuning(keys(Memory(store)), {"score": float("nan")})
    assert "not remembered" in store.notes[0]


def test_nothing_is_left_half_done_when_the_disk_is_full(paths, kept, tmp_path, monkeypatch):
    from lora_alloy.cache import store as stores

    def full(stream, piece):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "_write", full)
        store = Store(kept)
        found = merge(stack(paths), memory=store)
    assert "No space left" in store.notes[0]
    assert_same(found, merge(stack(paths)))
    assert not [path for path in kept.rglob("*") if path.is_file() and path.name != "lock"]
    with pytest.raises(SaveError):
        found.save(tmp_path)
    assert not merge(stack(paths), memory=Store(kept)).is_recalled
    assert merge(stack(paths), memory=Store(kept)).is_recalled


def test_opened_files_are_known_too(paths, kept):
    merge(stack(paths), memory=Store(kept))
    entries = [replace(entry, file=open_lora(path)) for entry, path in zip(stack(paths), paths, strict=True)]
    assert merge(api.stack_of(entries), memory=Store(kept)).is_recalled
