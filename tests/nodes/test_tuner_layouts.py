"""The front-end's migration of stored AutoTuner nodes."""

import pytest

from lora_alloy.nodes.lora_auto_tuner import LoRAAutoTuner
from lora_alloy.nodes.lora_auto_tuner_settings import LoRAAutoTunerSettings
from lora_alloy_testing.node_js import call, needs_node
from lora_alloy_testing.tuner_layouts import SELECTOR, SETTINGS, SETTINGS_TODAY, TUNER, TUNER_TODAY

pytestmark = needs_node

MODULE = "tuner_layouts.js"
LAYOUTS = {"migrateTuner": TUNER, "migrateTunerSettings": SETTINGS, "migrateSelector": SELECTOR}


def migrate(function, arrays, tmp_path):
    """The arrays after `function` of the module, and for each whether it came back as it was."""
    return call(tmp_path, MODULE, f"given.map((a) => [m.{function}(a), m.{function}(a) === a])", arrays)


@pytest.mark.parametrize("function", LAYOUTS)
def test_every_older_layout_becomes_todays(tmp_path, function):
    layouts = LAYOUTS[function]
    results = migrate(function, [old for old, _ in layouts.values()], tmp_path)
    for (name, (_, expected)), (values, untouched) in zip(layouts.items(), results, strict=True):
        assert values == expected, name
        assert not untouched, name


@pytest.mark.parametrize("function", LAYOUTS)
def test_todays_arrays_come_back_as_they_are_and_unknown_ones_too(tmp_path, function):
    today = [expected for _, expected in LAYOUTS[function].values()]
    unknown = [[], [1], ["a"] * 20, [0.1] * 15, [*today[0], 1, 2], today[0][::-1], [None] * 30]
    results = migrate(function, [*today, *unknown], tmp_path)
    assert results == [[values, True] for values in [*today, *unknown]]


@pytest.mark.parametrize(
    ("node", "today"), [(LoRAAutoTuner, TUNER_TODAY), (LoRAAutoTunerSettings, SETTINGS_TODAY)]
)
def test_the_defaults_that_are_filled_in_are_those_of_a_new_node(node, today):
    inputs = node.INPUT_TYPES()
    given = {**inputs["required"], **inputs["optional"]}
    assert {name: given[name][1]["default"] for name in today} == today


def test_a_stored_save_node_gains_what_it_lacked(tmp_path):
    given = [["tuned"], ["/old", "tuned", False], ["/old", "tuned", False, "p", "d"], [1], []]
    made = call(tmp_path, MODULE, 'given.map((a) => m.migrateSaveTuner(a, "/here"))', given)
    assert made == [
        ["/here", "tuned", True, "", ""],
        ["/old", "tuned", False, "", ""],
        ["/old", "tuned", False, "p", "d"],
        [1],
        [],
    ]
