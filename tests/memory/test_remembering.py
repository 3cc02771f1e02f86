"""A remembered merge is the merge: the same bits, found again exactly when nothing that counts has changed."""

import os
import shutil
import time
from dataclasses import fields, replace
from itertools import permutations
from pathlib import Path

import pytest

from lora_alloy import api
from lora_alloy.api import analyze, merge, plan
from lora_alloy.cache.store import Store
from lora_alloy.lora.entries import Entry
from lora_alloy.lora.file import lora_in_memory
from lora_alloy.memory import contents
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, entry_of, tensors_of, toy_lora, write_lora
from lora_alloy_testing.remembered import Counted, assert_same, same_bits, saved, stack

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
