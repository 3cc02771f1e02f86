"""The AutoTuner's nodes on the screen: stored workflows, and its place beside the legacy optimizer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from lora_alloy_testing.browser import CHROMIUM, RENDERERS, FrontEnd, chromium  # noqa: E402
from lora_alloy_testing.comfy_server import ComfyServer  # noqa: E402
from lora_alloy_testing.tuner_layouts import SELECTOR, SETTINGS, TUNER, TUNER_TODAY  # noqa: E402

pytestmark = [
    pytest.mark.browser,
    pytest.mark.comfy,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

CONNECT = """([from, output, to, input]) => {
    const [a, b] = [app.graph.getNodeById(from), app.graph.getNodeById(to)];
    a.connect(a.findOutputSlot(output), b, b.findInputSlot(input));
}"""
DISCONNECT = """([id, input]) => {
    const node = app.graph.getNodeById(id);
    node.disconnectInput(node.findInputSlot(input));
}"""


@pytest.fixture(scope="module", params=RENDERERS)
def opened(request: pytest.FixtureRequest, comfy_server: ComfyServer) -> Iterator[FrontEnd]:
    with chromium() as browser, FrontEnd(browser, comfy_server, request.param) as front_end:
        yield front_end


@pytest.fixture
def front_end(opened: FrontEnd) -> Iterator[FrontEnd]:
    opened.clear()
    opened.faults.clear()
    yield opened
    assert opened.faults == []


def connect(front_end: FrontEnd, source: int, output: str, target: int, inlet: str) -> None:
    front_end.script(CONNECT, [source, output, target, inlet])
    front_end.frame()


def pair(front_end: FrontEnd) -> tuple[int, int]:
    """An AutoTuner whose result is linked to a legacy optimizer."""
    tuner, optimizer = front_end.add("LoRAAutoTuner", x=60, y=60), front_end.add("LoRAOptimizer", x=700, y=60)
    connect(front_end, tuner, "tuner_data", optimizer, "tuner_data")
    return tuner, optimizer


def stored(node_type: str, values: list[Any]) -> dict[str, Any]:
    node = {
        "id": 1,
        "type": node_type,
        "pos": [150, 80],
        "size": [400, 700],
        "flags": {},
        "order": 0,
        "mode": 0,
    }
    node |= {"inputs": [], "outputs": [], "properties": {}, "widgets_values": values}
    head = {"last_node_id": 1, "last_link_id": 0, "groups": [], "config": {}, "extra": {}, "version": 0.4}
    return {**head, "nodes": [node], "links": []}


@pytest.mark.parametrize("name", TUNER)
def test_a_stored_auto_tuner_of_any_age_puts_each_value_where_it_belongs(
    front_end: FrontEnd, name: str
) -> None:
    old, expected = TUNER[name]
    front_end.load(stored("LoRAAutoTuner", old))
    assert front_end.values(1) == dict(zip(TUNER_TODAY, expected, strict=True))
    assert front_end.save()["nodes"][0]["widgets_values"] == expected


def test_stored_settings_and_selectors_gain_what_they_lacked(front_end: FrontEnd) -> None:
    for node, layouts in (("LoRAAutoTunerSettings", SETTINGS), ("LoRAMergeSelector", SELECTOR)):
        for old, expected in layouts.values():
            front_end.load(stored(node, old))
            assert list(front_end.values(1).values()) == expected


def test_switches_show_only_where_they_matter(front_end: FrontEnd) -> None:
    tuner, optimizer = front_end.add("LoRAAutoTuner", x=60, y=60), front_end.add("LoRAOptimizer", x=700, y=60)
    assert "output_mode" not in front_end.shown(tuner)
    assert "settings_source" not in front_end.shown(optimizer)
    connect(front_end, tuner, "tuner_data", optimizer, "tuner_data")
    assert "output_mode" in front_end.shown(tuner)
    assert "settings_source" in front_end.shown(optimizer)
    front_end.set(optimizer, settings_source="from_tuner_data")
    front_end.set(tuner, output_mode="tuning_only")
    front_end.script(DISCONNECT, [optimizer, "tuner_data"])
    front_end.frame()
    assert "output_mode" not in front_end.shown(tuner)
    assert "settings_source" not in front_end.shown(optimizer)
    assert front_end.values(tuner)["output_mode"] == "merge"
    assert front_end.values(optimizer)["settings_source"] == "manual"


def test_one_merges_where_the_other_does_not(front_end: FrontEnd) -> None:
    tuner, optimizer = pair(front_end)
    for node, name, value, other, follows in (
        (optimizer, "settings_source", "from_autotuner", tuner, "merge"),
        (tuner, "output_mode", "tuning_only", optimizer, "manual"),
        (tuner, "output_mode", "merge", optimizer, "from_autotuner"),
        (optimizer, "settings_source", "manual", tuner, "tuning_only"),
        (optimizer, "settings_source", "from_tuner_data", tuner, "tuning_only"),
    ):
        front_end.set(node, **{name: value})
        widget = "output_mode" if other == tuner else "settings_source"
        assert front_end.values(other)[widget] == follows
        assert front_end.values(node)[name] == value


@pytest.mark.parametrize("values", [("merge", "manual"), ("tuning_only", "from_tuner_data")], ids=str)
def test_loading_a_workflow_changes_neither_switch(front_end: FrontEnd, values: tuple[str, str]) -> None:
    pair(front_end)
    saved = front_end.save()
    for node in saved["nodes"]:
        fields, value = (
            (list(TUNER_TODAY), values[0]) if node["type"] == "LoRAAutoTuner" else (None, values[1])
        )
        node["widgets_values"][fields.index("output_mode") if fields else 17] = value
    for order in (1, -1):
        front_end.load({**saved, "nodes": saved["nodes"][::order]})
        found = {node["type"]: node["id"] for node in front_end.save()["nodes"]}
        assert front_end.values(found["LoRAAutoTuner"])["output_mode"] == values[0]
        assert front_end.values(found["LoRAOptimizer"])["settings_source"] == values[1]
        assert "output_mode" in front_end.shown(found["LoRAAutoTuner"])
        assert "settings_source" in front_end.shown(found["LoRAOptimizer"])


def test_a_swap_carries_values_and_links_over(front_end: FrontEnd) -> None:
    stack, tuner = front_end.add("LoRAStack", x=60, y=600), front_end.add("LoRAAutoTuner", x=400, y=60)
    saving = front_end.add("SaveMergedLoRA", x=1000, y=60)
    connect(front_end, stack, "lora_stack", tuner, "lora_stack")
    connect(front_end, tuner, "lora_data", saving, "lora_data")
    carried = {
        "output_strength": 0.4,
        "architecture_preset": "dit",
        "auto_strength_floor": 0.5,
        "vram_budget": 0.2,
    }
    front_end.set(tuner, **carried)
    front_end.choose_from_context_menu(tuner, "top_n", "Swap to LoRA Optimizer")
    saved = front_end.save()
    made = next(node["id"] for node in saved["nodes"] if node["type"] == "LoRAOptimizer")
    assert tuner not in [node["id"] for node in saved["nodes"]]
    values = front_end.values(made)
    assert {name: values[name] for name in carried} == carried
    ends = {(link[1], link[3]) for link in saved["links"]}
    assert ends == {(stack, made), (made, saving)}
    front_end.choose_from_context_menu(made, "strategy_set", "Swap to LoRA AutoTuner")
    saved = front_end.save()
    back = next(node["id"] for node in saved["nodes"] if node["type"] == "LoRAAutoTuner")
    assert {(link[1], link[3]) for link in saved["links"]} == {(stack, back), (back, saving)}
    assert {name: front_end.values(back)[name] for name in carried} == carried
    kinds = [
        (node["type"], [one["name"] for one in node["outputs"] if one.get("links")])
        for node in saved["nodes"]
    ]
    assert ("LoRAAutoTuner", ["lora_data"]) in kinds


def test_the_example_opens_whole(front_end: FrontEnd) -> None:
    path = Path(__file__).resolve().parents[2] / "example_workflows" / "lora_alloy_auto_tuner.json"
    workflow = json.loads(path.read_text(encoding="utf-8"))
    front_end.load(workflow)
    saved = front_end.save()
    assert len(saved["links"]) == len(workflow["links"])
    again = {node["id"]: node for node in saved["nodes"]}
    for node in workflow["nodes"]:
        assert again[node["id"]]["type"] == node["type"]
        stored_values = node.get("widgets_values", [])
        assert again[node["id"]].get("widgets_values", [])[: len(stored_values)] == stored_values
    tuner = next(node["id"] for node in workflow["nodes"] if node["type"] == "LoRAAutoTuner")
    assert "output_mode" in front_end.shown(tuner)
