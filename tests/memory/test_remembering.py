"""A remembered merge is the merge: the same bits, found again exactly when nothing that counts has changed."""

import os
import shutil
import time
from dataclasses import fields, replace
from itertools import permutations
from pathlib import Path

import pytest
import torch

from lora_alloy import api
from lora_alloy.analysis import measure as measuring
from lora_alloy.api import Merged, analyze, merge, plan
from lora_alloy.cache.store import Store
from lora_alloy.core.errors import SaveError
from lora_alloy.lora.entries import Entry
from lora_alloy.lora.file import lora_in_memory, open_lora
from lora_alloy.memory import Memory, contents
from lora_alloy.memory import memory as remembering
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, entry_of, tensors_of, toy_lora, write_lora

# Of every field of a recipe, another value than the one that a merge below has.
OTHERS = {
    "method": "ties",
    "density": 0.4,
    "sparsify": "dare",
    "dampening": 0.5,
    "enhance": "refine",
    "auto_strength": False,
    "auto_strength_floor": 0.5,
    "global_scale": "none",
    "strength_scale": "relative",
    "rank": 3,
    "tolerance": 0.1,
    "dtype": "float16",
    "partial": True,
    "hold_structural": False,
    "honour_metadata": True,
    "scope": "global",
    "strategy_set": "basic",
    "smoothing": 0.7,
    "architecture": "dit",
    "vote": "total",
    "divisor": "count",
    "symmetric": True,
    "dominance": 2.0,
    "rank_limit": 8,
    "compress": "disabled",
    "formula": "(1+2):0.6 + 3",
    "star_eta": 90.0,
    "tame": 0.0,
    "tame_threshold": 0.5,
    "seed": 7,
}
RECIPES = {
    "balanced": Recipe(),
    "ties": Recipe(method="ties", dtype="float16"),
    "dense": Recipe(method="ties", compress="disabled"),
    "shared basis": Recipe(method="ties", enhance="knots"),
    "chance": Recipe(sparsify="dare", method="weighted_average", seed=3),
    "cut": Recipe(rank=3),
    "cleaned": Recipe(star_eta=80.0),
    "formula": Recipe(formula="(1+2):0.6 + 3:0.4"),
}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    names = list(TOY)
    return [
        write_lora(tmp_path / "ink.safetensors", toy_lora(1, rank=4, alpha=2.0)),
        write_lora(tmp_path / "oil.safetensors", toy_lora(2, rank=8, names=names[1:])),
        write_lora(tmp_path / "wax.safetensors", toy_lora(3, rank=2), "peft"),
    ]


def stack(paths: list[Path], strengths: tuple[float, ...] = (1.0, 0.8, -0.5)) -> list[Entry]:
    return [
        entry_of(path, strength, 0.7 * strength, preserve=place == 2)
        for place, (path, strength) in enumerate(zip(paths, strengths, strict=False))
    ]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.contiguous()
        .reshape(-1)
        .view(torch.uint8)
        .equal(other.contiguous().reshape(-1).view(torch.uint8))
    )


def assert_same(found: Merged, expected: Merged) -> None:
    assert found.plan == expected.plan
    for one, other in zip(found.patches, expected.patches, strict=True):
        assert replace(one, delta=other.delta) == other
        assert type(one.delta) is type(other.delta)
        assert (one.delta.scale, one.delta.shape) == (other.delta.scale, other.delta.shape)
        assert one.delta.tensors.keys() == other.delta.tensors.keys()
        assert all(same_bits(one.delta.tensors[role], value) for role, value in other.delta.tensors.items())
    for one, other in zip(found.measured, expected.measured, strict=True):
        assert (one.target, one.entries, one.size) == (other.target, other.entries, other.size)
        assert same_bits(one.gram, other.gram)
        assert (one.conflict is None) == (other.conflict is None)
        assert one.conflict is None or other.conflict is None or same_bits(one.conflict, other.conflict)
    assert found.report.text() == expected.report.text()


def saved(merged: Merged, path: Path) -> bytes:
    merged.save(path)
    return path.read_bytes()


class Counted:
    """Counts the targets that are measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.targets, inner = [], measuring._measure_group

        def counting(stack, group, is_deep):
            self.targets.append(str(group.target))
            return inner(stack, group, is_deep)

        monkeypatch.setattr(measuring, "_measure_group", counting)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("is_lazy", [False, True])
def test_the_second_run_gives_the_same_bits(recipe, is_lazy, paths, kept, tmp_path, monkeypatch):
    fresh = merge(stack(paths), recipe)
    first = merge(stack(paths), recipe, memory=Store(kept), is_lazy=is_lazy)
    counted = Counted(monkeypatch)
    second = merge(stack(paths), recipe, memory=Store(kept), is_lazy=is_lazy)
    assert not first.is_recalled and (second.is_recalled or is_lazy)
    if recipe.formula == "":
        assert counted.targets == []
    assert_same(second, first)
    assert (
        saved(first, tmp_path / "a.safetensors")
        == saved(second, tmp_path / "a.safetensors")
        == saved(fresh, tmp_path / "a.safetensors")
    )


def test_a_lazy_merge_remembers_its_plan_and_not_its_values(paths, kept):
    recipe = Recipe(method="ties", compress="disabled")
    merge(stack(paths), recipe, memory=Store(kept), is_lazy=True)
    assert set(Store(kept).sizes()) >= {"plan"} and "result" not in Store(kept).sizes()


@pytest.mark.parametrize("name", [field.name for field in fields(Recipe)])
def test_every_field_of_a_recipe_counts(name, paths, kept):
    recipe = replace(Recipe(), **{name: OTHERS[name]})
    merge(stack(paths), memory=Store(kept))
    other = merge(stack(paths), recipe, memory=Store(kept))
    assert other.is_recalled == (recipe == Recipe())
    assert merge(stack(paths), recipe, memory=Store(kept)).is_recalled
    assert merge(stack(paths), memory=Store(kept)).is_recalled
    assert_same(other, merge(stack(paths), recipe))


def test_the_other_values_are_of_all_fields_and_are_others():
    default = Recipe()
    assert OTHERS.keys() == {field.name for field in fields(Recipe)}
    # TAME needs a base model, and is looked at below.
    assert [name for name, value in OTHERS.items() if getattr(default, name) == value] == ["tame"]


@pytest.mark.parametrize(
    "change",
    [
        {"strength": 0.81},
        {"clip_strength": 0.5},
        {"clip_strength": None},
        {"preserve": True},
        {"conflict_mode": "low_conflict"},
        {"key_filter": "shared_only"},
    ],
    ids=str,
)
def test_everything_about_an_entry_counts(change, paths, kept):
    entries = stack(paths)
    merge(entries, memory=Store(kept))
    other = [entries[0], replace(entries[1], **change), entries[2]]
    assert_same(merge(other, memory=Store(kept)), merge(other))
    assert merge(other, memory=Store(kept)).is_recalled
    assert merge(entries, memory=Store(kept)).is_recalled


def test_a_renamed_and_moved_file_is_the_same_and_goes_by_its_new_name(paths, kept, tmp_path):
    merge(stack(paths), memory=Store(kept))
    moved = tmp_path / "other" / "zinc.safetensors"
    moved.parent.mkdir()
    paths[1].rename(moved)
    entries = stack([paths[0], moved, paths[2]])
    found = merge(entries, memory=Store(kept))
    assert found.is_recalled
    assert_same(found, merge(entries))
    assert saved(found, tmp_path / "a.safetensors") == saved(merge(entries), tmp_path / "a.safetensors")
    assert "zinc" in found.report.text() and "oil" not in found.report.text()


def test_a_name_that_says_what_a_lora_is_for_counts(paths, kept, tmp_path):
    entries = stack(paths)[:2]
    merge(entries, memory=Store(kept))
    renamed = tmp_path / "sdxl_lcm_lora.safetensors"
    paths[1].rename(renamed)
    entries = stack([paths[0], renamed])
    found = merge(entries, memory=Store(kept))
    assert not found.is_recalled and found.plan.sources[1].held
    assert_same(found, merge(entries))


def test_a_file_replaced_under_its_name_is_another(paths, kept):
    merge(stack(paths), memory=Store(kept))
    told = paths[1].stat()
    write_lora(paths[1], toy_lora(9, rank=8, names=list(TOY)[1:]))
    assert paths[1].stat().st_size == told.st_size
    os.utime(paths[1], ns=(told.st_atime_ns, told.st_mtime_ns))
    found = merge(stack(paths), memory=Store(kept))
    assert not found.is_recalled
    assert_same(found, merge(stack(paths)))


def test_a_file_that_is_written_over_in_place_is_another(paths, kept, tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "SETTLED", -1e9)  # as if the file were old
    merge(stack(paths), memory=Store(kept))
    assert Store(kept).sizes()["content"][0] == 3
    told = paths[1].stat()
    other = write_lora(tmp_path / "x.safetensors", toy_lora(9, rank=8, names=list(TOY)[1:]))
    time.sleep(0.02)
    with paths[1].open("r+b") as stream:
        stream.write(other.read_bytes())
    os.utime(paths[1], ns=(told.st_atime_ns, told.st_mtime_ns))
    found = merge(stack(paths), memory=Store(kept))
    assert not found.is_recalled
    assert_same(found, merge(stack(paths)))


def test_a_copied_or_touched_file_is_the_same(paths, kept, tmp_path):
    merge(stack(paths), memory=Store(kept))
    copy = Path(shutil.copy(paths[0], tmp_path / "copy.safetensors"))
    os.utime(paths[1])
    assert merge(stack([copy, *paths[1:]]), memory=Store(kept)).is_recalled


def test_a_file_that_was_just_written_is_read_again(paths, kept, monkeypatch):
    merge(stack(paths), memory=Store(kept))
    assert "content" not in Store(kept).sizes()
    monkeypatch.setattr(contents, "SETTLED", -1e9)
    merge(stack(paths), memory=Store(kept))
    assert Store(kept).sizes()["content"][0] == 3
    monkeypatch.setattr(contents, "file_sha256", lambda path: pytest.fail(f"{path} is read"))
    assert merge(stack(paths), memory=Store(kept)).is_recalled


def test_every_order_finds_the_merge_and_gives_its_own_plan(paths, kept, tmp_path):
    entries = stack(paths)
    merge(entries, memory=Store(kept))
    expected = saved(merge(entries), tmp_path / "a.safetensors")
    for order in permutations(entries):
        found = merge(list(order), memory=Store(kept))
        assert found.is_recalled
        assert_same(found, merge(list(order)))
        assert saved(found, tmp_path / "a.safetensors") == expected


def test_back_and_forth_between_two_stacks_makes_nothing_anew(paths, kept, monkeypatch):
    one, other = stack(paths), stack(paths[:2], (0.3, 0.4))
    merge(one, memory=Store(kept))
    merge(other, memory=Store(kept))
    counted = Counted(monkeypatch)
    monkeypatch.setattr(api, "make_plan", lambda *_: pytest.fail("a plan is made"))
    monkeypatch.setattr(api, "execute", lambda *_, **__: pytest.fail("a merge is made"))
    assert merge(one, memory=Store(kept)).is_recalled
    assert merge(other, memory=Store(kept)).is_recalled
    assert counted.targets == []


def test_other_strengths_and_orders_measure_nothing_anew(paths, kept, monkeypatch):
    merge(stack(paths), memory=Store(kept))
    counted = Counted(monkeypatch)
    for order in permutations(stack(paths, (0.2, -0.9, 0.4))):
        assert_same(merge(list(order), memory=Store(kept)), merge(list(order), memory=None))
    counted.targets.clear()
    merge(stack(paths, (0.2, 0.2, 0.2)), memory=Store(kept))
    assert counted.targets == []


def test_a_part_of_a_stack_measures_nothing_anew(paths, kept, monkeypatch):
    merge(stack(paths), memory=Store(kept))
    counted = Counted(monkeypatch)
    for left in ((0, 1), (1, 2), (2, 0), (1,)):
        merge([stack(paths)[place] for place in left], memory=Store(kept))
    assert counted.targets == []


def test_one_lora_more_measures_only_where_it_acts(paths, kept, tmp_path, monkeypatch):
    merge(stack(paths), memory=Store(kept))
    name = list(TOY)[2]
    more = write_lora(tmp_path / "gum.safetensors", toy_lora(5, names=[name]))
    counted = Counted(monkeypatch)
    entries = [*stack(paths), entry_of(more)]
    found = merge(entries, memory=Store(kept))
    assert counted.targets == [TOY[name][0]]
    assert_same(found, merge(entries))


def test_numbers_of_two_depend_on_nothing_but_these_two(paths, kept):
    """What is put together from stacks of two is, to the bit, what one look at all of them gives."""
    for left in ((0, 1), (1, 2), (0, 2)):
        analyze([stack(paths)[place] for place in left], memory=Store(kept))
    put_together = analyze(stack(paths), memory=Store(kept))[1]
    at_once = analyze(stack(paths))[1]
    for one, other in zip(put_together, at_once, strict=True):
        assert one.entries == other.entries and one.effective_rank == other.effective_rank
        assert same_bits(one.gram, other.gram)
        for name in ("conflict", "overlap"):
            found, expected = getattr(one, name), getattr(other, name)
            assert (found is None) == (expected is None)
            assert found is None or same_bits(found, expected)


def test_a_look_in_depth_serves_a_merge(paths, kept, monkeypatch):
    analyze(stack(paths), memory=Store(kept))
    counted = Counted(monkeypatch)
    plan(stack(paths), memory=Store(kept))
    merge(stack(paths), memory=Store(kept))
    analyze(stack(paths), memory=Store(kept))
    assert counted.targets == []


def test_tensors_in_memory_go_by_their_values(paths, kept):
    def entries(seed: int) -> list[Entry]:
        return [Entry(lora_in_memory("x", tensors_of(toy_lora(n)), {}), 0.5 * n) for n in (1, seed)]

    merge(entries(2), memory=Store(kept))
    assert merge(entries(2), memory=Store(kept)).is_recalled
    assert not merge(entries(3), memory=Store(kept)).is_recalled


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
