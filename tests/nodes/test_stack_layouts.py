"""The front-end's migration of old widget arrays."""

from lora_alloy_testing.node_js import call, needs_node
from lora_alloy_testing.stack_layouts import FIELDS, LAYOUTS, current

pytestmark = needs_node


def migrate(function, arrays, tmp_path):
    """The arrays after `function` of the module, and for each whether it came back as it was."""
    expression = f"given.map((a) => [m.{function}(a), m.{function}(a) === a])"
    return call(tmp_path, "stack_layouts.js", expression, arrays)


def test_every_older_layout_of_the_dynamic_stack_becomes_todays(tmp_path):
    assert [len(old) for old, _ in LAYOUTS.values()] == list(LAYOUTS)
    results = migrate("migrateDynamicStack", [old for old, _ in LAYOUTS.values()], tmp_path)
    for (length, (_, expected)), (values, untouched) in zip(LAYOUTS.items(), results, strict=True):
        assert values == expected, length
        assert not untouched


def test_todays_arrays_come_back_as_they_are(tmp_path):
    with_null = current("text", FIELDS)
    with_null[4] = None
    fresh = current("dropdown", ())
    results = migrate("migrateDynamicStack", [current("text", FIELDS), fresh, with_null], tmp_path)
    assert [untouched for _, untouched in results] == [True] * 3
    assert results[0][0] == current("text", FIELDS)


def test_a_null_in_an_old_array_becomes_the_default(tmp_path):
    old, expected = LAYOUTS[84]
    old = [*old]
    old[3] = old[5] = None
    expected = [*expected]
    expected[3], expected[5] = True, "None"
    assert migrate("migrateDynamicStack", [old], tmp_path)[0][0] == expected


def test_unknown_arrays_are_left_alone(tmp_path):
    shuffled = LAYOUTS[84][0][::-1]
    unknown = [[], [1], LAYOUTS[84][0][:-1], LAYOUTS[84][0] * 2, shuffled, ["advanced", "text"] * 37]
    results = migrate("migrateDynamicStack", unknown, tmp_path)
    assert [values for values, _ in results] == unknown
    assert all(untouched for _, untouched in results)


def test_the_single_stack_fills_what_older_files_lack_and_drops_what_newer_ones_add(tmp_path):
    old = [
        ["a", 0.5],
        ["a", 0.5, "low_conflict"],
        ["a", 0.5, "low_conflict", "unique_only"],
        ["a", 0.5, "low_conflict", "unique_only", True],
        ["a", 0.5, "low_conflict", "unique_only", True, "comfy"],
        ["a"],
        [0.5, "a"],
        ["a", 0.5, "all", "all", "all", "all"],
    ]
    results = migrate("migrateStack", old, tmp_path)
    assert [values for values, _ in results] == [
        ["a", 0.5, "all", "all", False],
        ["a", 0.5, "low_conflict", "all", False],
        ["a", 0.5, "low_conflict", "unique_only", False],
        ["a", 0.5, "low_conflict", "unique_only", True],
        ["a", 0.5, "low_conflict", "unique_only", True],
        *old[5:],
    ]
    assert [untouched for _, untouched in results] == [False] * 3 + [True, False] + [True] * 3


def test_the_save_node_of_before_there_were_folders_gets_the_first_one(tmp_path):
    stored = [
        ["old", 16, False],
        ["/loras", "name", 16, False],
        ["/loras", "name", 16, False, "a kettle", "boiled"],
        ["/loras", "name", 16],
        [],
        [16, "name", False],
    ]
    expression = 'given.map((a) => [m.migrateSave(a, "/first"), m.migrateSave(a, "/first") === a])'
    results = call(tmp_path, "save_layouts.js", expression, stored)
    assert [values for values, _ in results] == [["/first", "old", 16, False], *stored[1:]]
    assert [untouched for _, untouched in results] == [False] + [True] * 5
