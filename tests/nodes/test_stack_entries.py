import copy

import pytest
import torch

from lora_alloy.core.errors import StackError
from lora_alloy.nodes.stack_entries import StackEntry, read_stack, stack_element


@pytest.mark.parametrize(
    ("element", "entry"),
    [
        (("a", 0.5, 0.25), StackEntry("a", 0.5, 0.25)),
        (["a", 0.5, 0.25], StackEntry("a", 0.5, 0.25)),
        (("a", 0.5, None), StackEntry("a", 0.5, 0.5)),
        (("a", "0.5", "-1"), StackEntry("a", 0.5, -1.0)),
        (("a", 1, 1, "low_conflict"), StackEntry("a", 1.0, 1.0, "low_conflict")),
        (("a", 1, 1, "all", "shared_only"), StackEntry("a", 1.0, 1.0, "all", "shared_only")),
        (("a", 1, 1, None, None, True), StackEntry("a", 1.0, 1.0, preserve=True)),
        (("a", 1, 1, "all", "all", False, "auto", 7), StackEntry("a", 1.0, 1.0)),
        (("a", 0.0, 0.5), StackEntry("a", 0.0, 0.5)),
        (("a", 0.5, 0.0), StackEntry("a", 0.5, 0.0)),
        (("/x/a.safetensors", -2, 1), StackEntry("/x/a.safetensors", -2.0, 1.0)),
        ({"name": "a", "strength": 0.5}, StackEntry("a", 0.5, 0.5)),
        ({"name": "a", "strength": 0.5, "clip_strength": None}, StackEntry("a", 0.5, 0.5)),
        (
            {
                "name": "a",
                "strength": 1,
                "clip_strength": 0.5,
                "conflict_mode": "high_conflict",
                "key_filter": "audio_only",
                "preserve": True,
            },
            StackEntry("a", 1.0, 0.5, "high_conflict", "audio_only", True),
        ),
        ({"lora_name": "a", "strength_model": 0.5, "strength_clip": 0.0}, StackEntry("a", 0.5, 0.0)),
        ({"lora_name": "a", "model_strength": 0.5, "clip_strength": 1}, StackEntry("a", 0.5, 1.0)),
        ({"on": True, "lora": "a", "strength": 0.5, "strengthTwo": None}, StackEntry("a", 0.5, 0.5)),
        ({"on": True, "lora": "a", "strength": 0.5, "strengthTwo": 0.1}, StackEntry("a", 0.5, 0.1)),
        ({"lora": "a", "strength": 0.5}, StackEntry("a", 0.5, 0.5)),
        ({"name": "a", "weight": 0.5, "enabled": "true"}, StackEntry("a", 0.5, 0.5)),
        ({"name": "pretty", "path": "/x/a.pt", "strength": 1}, StackEntry("/x/a.pt", 1.0, 1.0)),
    ],
)
def test_every_spelling_of_an_entry_reads_as_the_same_thing(element, entry):
    entries, notes = read_stack([element])
    assert entries == [entry]
    assert notes == []


def test_tensors_and_metadata_come_along():
    up = torch.ones(4, 2)
    stack = [
        {"name": "in memory", "strength": 1.0, "lora": {"x.lora_up.weight": up}, "metadata": {"rank": 2}}
    ]
    (entry,), notes = read_stack(stack)
    assert entry.name == "in memory" and entry.metadata == {"rank": "2"} and notes == []
    assert entry.tensors is not None and entry.tensors["x.lora_up.weight"] is up


@pytest.mark.parametrize(
    ("element", "said"),
    [
        (None, "is None"),
        ("a.safetensors", "a str"),
        (7, "a int"),
        ((), "names no LoRA"),
        (("None", 1, 1), "names no LoRA"),
        ((None, 1, 1), "names no LoRA"),
        (("", 1, 1), "names no LoRA"),
        (("a", 1), "'a', has 2 of the 3 fields"),
        (("a", 0, 0), "'a', has strength 0"),
        (("a", 0, None), "'a', has strength 0"),
        (("a", None, 1), "'a', has no strength"),
        ({"strength": 1}, "names no LoRA"),
        ({"name": "a"}, "'a', has no strength"),
        ({"lora": "a", "strength": 1, "on": False}, "'a', is switched off"),
        (
            {"name": "a", "strength": 1, "lora": {"t": torch.ones(1)}, "_precomputed_diffs": True},
            "half-finished",
        ),
    ],
)
def test_what_is_left_out_is_said_and_the_rest_is_kept(element, said):
    entries, notes = read_stack([("first", 1, 1), element, ("last", 1, 1)])
    assert [entry.name for entry in entries] == ["first", "last"]
    assert len(notes) == 1 and said in notes[0]


def test_an_unknown_filter_of_another_pack_becomes_all_and_is_said():
    entries, notes = read_stack([("a", 1, 1, "trigger word", "whatever")])
    assert entries == [StackEntry("a", 1.0, 1.0)]
    assert "'trigger word'" in notes[0] and "'whatever'" in notes[1]


@pytest.mark.parametrize("strength", [float("nan"), float("inf"), "much", True, [1], 10**400])
def test_a_strength_that_is_no_finite_number_is_refused_by_name(strength):
    with pytest.raises(StackError, match=r"Entry 2 of the LoRA stack, 'b', has a strength that is"):
        read_stack([("a", 1, 1), ("b", strength, 1)])
    with pytest.raises(StackError, match="has a CLIP strength that is"):
        read_stack([("a", 1, strength)])


def test_duplicates_are_kept_and_said():
    entries, notes = read_stack([("a", 1, 1), ("b", 1, 1), ("a", 0.5, 0.5)])
    assert len(entries) == 3
    assert notes == ["'a' stands in the LoRA stack 2 times; each one counts."]


@pytest.mark.parametrize("stack", [None, [], ()])
def test_no_stack_is_an_empty_stack(stack):
    assert read_stack(stack) == ([], [])


def test_a_stack_that_is_no_list_is_refused():
    with pytest.raises(StackError, match="is a str, not a list"):
        read_stack("a.safetensors")


def test_reading_changes_nothing():
    stack = [
        ("a", 1, 1),
        {"name": "b", "strength": 1, "metadata": {"k": "v"}},
        {"_merge_formula": "1+2"},
        None,
    ]
    before = copy.deepcopy(stack)
    read_stack(stack)
    assert stack == before


def test_a_plain_entry_is_emitted_as_the_three_fields_every_pack_unpacks():
    assert stack_element(StackEntry("a", 1.0, 0.5)) == ("a", 1.0, 0.5)


@pytest.mark.parametrize(
    "entry",
    [
        StackEntry("a", 1.0, 0.5, conflict_mode="low_conflict"),
        StackEntry("a", 1.0, 0.5, key_filter="unique_only"),
        StackEntry("a", 1.0, 0.5, preserve=True),
    ],
)
def test_an_entry_that_says_more_is_emitted_whole_and_reads_back(entry):
    assert len(stack_element(entry)) == 6
    assert read_stack([stack_element(entry)]) == ([entry], [])
