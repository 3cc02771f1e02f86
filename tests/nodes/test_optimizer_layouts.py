"""The front-end's migration of stored optimizers, and what it takes from a tuned configuration."""

import json

import pytest

from lora_alloy.nodes.lora_optimizer import LoRAOptimizer
from lora_alloy_testing.node_js import call, needs_node
from lora_alloy_testing.optimizer_layouts import MERGE_SETTINGS, OPTIMIZER, TODAY

pytestmark = needs_node

MODULE = "optimizer_layouts.js"


def migrate(function, arrays, tmp_path):
    """The arrays after `function` of the module, and for each whether it came back as it was."""
    return call(tmp_path, MODULE, f"given.map((a) => [m.{function}(a), m.{function}(a) === a])", arrays)


@pytest.mark.parametrize(
    ("function", "layouts"), [("migrateOptimizer", OPTIMIZER), ("migrateMergeSettings", MERGE_SETTINGS)]
)
def test_every_older_layout_becomes_todays(tmp_path, function, layouts):
    results = migrate(function, [old for old, _ in layouts.values()], tmp_path)
    for (name, (_, expected)), (values, untouched) in zip(layouts.items(), results, strict=True):
        assert values == expected, name
        assert not untouched, name


def test_the_defaults_that_are_filled_in_are_those_of_a_new_node(tmp_path):
    inputs = LoRAOptimizer.INPUT_TYPES()
    given = {**inputs["required"], **inputs["optional"]}
    fresh = {name: given[name][1]["default"] for name in TODAY}
    assert fresh == TODAY


def test_todays_arrays_come_back_as_they_are(tmp_path):
    today = [list(TODAY.values()), OPTIMIZER["15"][1]]
    assert migrate("migrateOptimizer", today, tmp_path) == [[values, True] for values in today]
    settings = [expected for _, expected in MERGE_SETTINGS.values()]
    assert migrate("migrateMergeSettings", settings, tmp_path) == [[values, True] for values in settings]


def test_unknown_arrays_are_left_alone(tmp_path):
    unknown = [[], [1], OPTIMIZER["15"][0][::-1], [*TODAY.values(), 1], ["a"] * 20, [1] * 7, [0.1] * 11]
    for function in ("migrateOptimizer", "migrateMergeSettings"):
        results = migrate(function, unknown, tmp_path)
        assert [values for values, _ in results] == unknown
        assert all(untouched for _, untouched in results)


def test_renamed_words_are_translated_in_todays_layout_too(tmp_path):
    stored = list((TODAY | {"merge_refinement": "maximum", "strategy_set": "v1.2"}).values())
    expected = list((TODAY | {"merge_refinement": "full"}).values())
    assert migrate("migrateOptimizer", [stored], tmp_path) == [[expected, False]]


def test_a_tuned_configuration_sets_every_widget_it_has_and_nothing_else(tmp_path):
    config = {
        "merge_mode": "ties",
        "optimization_mode": "global",
        "sparsification": "dare",
        "sparsification_density": 0.5,
        "dare_dampening": 0.6,
        "merge_refinement": "enhanced",
        "auto_strength": "disabled",
        "auto_strength_floor": -1.0,
        "strategy_set": "basic",
        "decision_smoothing": "loud",
    }
    given = [json.dumps(config), "no JSON", "[1]", "null", None]
    applied, *nothing = call(tmp_path, MODULE, "given.map(m.appliedSettings)", given)
    wanted = {name: config[name] for name in config if name not in ("merge_mode", "decision_smoothing")}
    assert applied == wanted | {"merge_refinement": "refine"}
    assert nothing == [{}] * 4
