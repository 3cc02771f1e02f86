"""The plan is a value: it goes through JSON unchanged, replays bit for bit, and fits one stack only."""

import json
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from lora_alloy.api import merge, plan
from lora_alloy.cli.merge_page import merge_page
from lora_alloy.core.errors import RecipeError
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.plan import Plan
from lora_alloy.merging.presets import PRESETS
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, dense, entry_of, toy_lora, write_lora
from lora_alloy_testing.flux import flux_lora, fused, split

RECIPES = {
    **{name: Recipe(method=name) for name in METHODS},
    **{f"{name} preset": PRESETS[name] for name in PRESETS},
    "truncated": Recipe(rank=3, dtype="bfloat16"),
}


def through_json(made: Plan) -> Plan:
    return Plan.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False)))


@pytest.fixture
def entries(tmp_path: Path) -> list[Entry]:
    paths = [write_lora(tmp_path / f"{n}.safetensors", toy_lora(n, rank=n + 2)) for n in range(3)]
    return [entry_of(paths[0], 0.9, 0.4), entry_of(paths[1], -0.5), entry_of(paths[2], 1 / 3, preserve=True)]


@pytest.fixture
def flux_entries(tmp_path: Path) -> list[Entry]:
    return [
        entry_of(write_lora(tmp_path / "fused.safetensors", fused(flux_lora(1)))),
        entry_of(write_lora(tmp_path / "split.safetensors", split(flux_lora(2)), "peft"), 0.7),
    ]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_plan_goes_through_json_unchanged(recipe, entries):
    made = plan(entries, recipe)
    assert through_json(made) == made


def test_a_plan_with_parts_of_weights_and_notes_goes_through_json_unchanged(flux_entries):
    made = plan([*flux_entries, flux_entries[0]])
    assert any(target.target.part for target in made.targets)
    assert made.notes
    assert through_json(made) == made


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_plan_replays_to_the_same_bytes(recipe, entries, tmp_path):
    first = merge(entries, recipe)
    again = merge(entries, through_json(first.plan))
    first.save(tmp_path / "first.safetensors")
    again.save(tmp_path / "again.safetensors")
    assert again.plan == first.plan
    assert (tmp_path / "first.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_execution_follows_the_plan_and_decides_nothing(entries):
    """Coefficients that no method would give come out as they are."""
    made = plan(entries, Recipe(method="weighted_sum", auto_strength=False))
    doubled = replace(
        made,
        targets=tuple(
            replace(one, coefficients=tuple(2 * c for c in one.coefficients)) for one in made.targets
        ),
    )
    once, twice = dense(merge(entries, made)), dense(merge(entries, doubled))
    assert all(abs(twice[name] - 2 * once[name]).max() < 1e-6 for name in once)


def test_planning_is_deciding_without_merging(entries):
    assert plan(entries) == merge(entries).plan


def test_a_plan_says_every_source_with_its_hash_and_strengths(entries):
    made = plan(entries)
    assert [(one.label, one.strength, one.clip_strength, one.preserve) for one in made.sources] == [
        ("0.safetensors", 0.9, 0.4, False),
        ("1.safetensors", -0.5, -0.5, False),
        ("2.safetensors", 1 / 3, 1 / 3, True),
    ]
    assert [one.sha256 for one in made.sources] == [entry.file.sha256 for entry in entries]
    assert made.family == "sd15"


def test_a_plan_cannot_be_changed(entries):
    with pytest.raises(FrozenInstanceError):
        plan(entries).family = "sdxl"  # type: ignore[misc]


class TestAnotherStack:
    """A plan is for the files, strengths and targets it was made from; with others it would lie."""

    def refused(self, made: Plan, entries: list[Entry]) -> None:
        with pytest.raises(RecipeError, match="was made for another stack"):
            merge(entries, made)

    def test_of_another_file(self, entries, tmp_path):
        other = entry_of(write_lora(tmp_path / "other.safetensors", toy_lora(9, rank=2)), 0.9, 0.4)
        self.refused(plan(entries), [other, *entries[1:]])

    def test_of_fewer_or_more_files(self, entries):
        self.refused(plan(entries), entries[:2])
        self.refused(plan(entries[:2]), entries)

    def test_in_another_order(self, entries):
        self.refused(plan(entries), entries[::-1])

    @pytest.mark.parametrize(
        "change",
        [{"strength": 0.8}, {"clip_strength": 0.5}, {"clip_strength": None}, {"preserve": True}],
        ids=str,
    )
    def test_at_other_strengths(self, change, entries):
        self.refused(plan(entries), [replace(entries[0], **change), *entries[1:]])

    def test_with_other_targets(self, entries):
        made = plan(entries)
        targets = (replace(made.targets[0], target=made.targets[1].target), *made.targets[1:])
        self.refused(replace(made, targets=targets), entries)

    def test_with_other_contributions(self, entries):
        made = plan(entries)
        targets = (replace(made.targets[0], entries=made.targets[0].entries[::-1]), *made.targets[1:])
        self.refused(replace(made, targets=targets), entries)

    def test_but_a_renamed_file_is_the_same(self, entries, tmp_path):
        path = tmp_path / "renamed.safetensors"
        path.write_bytes((tmp_path / "0.safetensors").read_bytes())
        assert len(merge([entry_of(path, 0.9, 0.4), *entries[1:]], plan(entries))) == len(TOY)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"version": None},
        {"recipe": None},
        {"recipe": {"method": "teis"}},
        {"sources": [{}]},
        {"sources": 3},
        {"targets": [{"target": {"weight": "x", "part": None}}]},
        {"targets": [{}]},
        {"scales": [{"name": "model"}]},
        {"notes": None},
    ],
    ids=str,
)
def test_what_is_no_plan_is_refused_with_a_sentence(change, entries):
    given = {**plan(entries).to_json(), **change}
    with pytest.raises(RecipeError):
        Plan.from_json(given)


@pytest.mark.parametrize("field", ["version", "recipe", "sources", "family", "targets", "scales", "notes"])
def test_a_plan_that_lacks_a_field_is_refused_with_a_sentence(field, entries):
    given = plan(entries).to_json()
    del given[field]
    with pytest.raises(RecipeError):
        Plan.from_json(given)


def leaves(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to every value of a plan that holds no others, with the first of every list only."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*at, name))
    elif isinstance(value, list | tuple) and value:
        yield from leaves(value[0], (*at, 0))
    else:
        yield at


@pytest.mark.parametrize(
    "value",
    [None, "x", [], {}, True, -1, 1e400, float("nan"), 10**400, "x" * 10**6],
    ids=lambda v: f"{v!r:.20}",
)
def test_a_plan_with_one_value_of_another_kind_is_refused_or_replays(value, entries, tmp_path):
    """Whatever stands there: a sentence, or a merge that can be reported and saved; never a traceback."""
    sound = json.loads(json.dumps(plan(entries).to_json()))
    for way in leaves(sound):
        given = json.loads(json.dumps(sound))
        inside = given
        for step in way[:-1]:
            inside = inside[step]
        inside[way[-1]] = value
        try:
            merged = merge(entries, Plan.from_json(given))
        except RecipeError as problem:
            assert str(problem).endswith("."), way
            continue
        assert merge_page(merged.report, merged.plan, merged.save(tmp_path / "out"), "comfyui")


@pytest.mark.parametrize("change", [lambda row: row.append(1.0), lambda row: row.pop(), list.clear])
def test_a_plan_has_one_coefficient_an_entry(change, entries):
    given = json.loads(json.dumps(plan(entries).to_json()))
    change(given["targets"][0]["coefficients"])
    with pytest.raises(RecipeError, match="one coefficient an entry"):
        Plan.from_json(given)
