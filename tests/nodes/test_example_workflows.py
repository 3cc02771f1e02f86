"""The example workflows as files: complete, in step with the nodes, and of no machine in particular."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lora_alloy.nodes import NODE_CLASS_MAPPINGS

FOLDER = Path(__file__).resolve().parent.parent.parent / "example_workflows"
EXAMPLES = sorted(FOLDER.glob("*.json"))
SOCKETS = {
    *("MODEL", "CLIP", "LORA_STACK", "LORA_DATA", "TUNER_DATA", "OPTIMIZER_SETTINGS"),
    *("MERGE_SETTINGS", "AUTOTUNER_EVALUATOR"),
}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_a_picture_for_the_template_browser(path):
    assert path.with_suffix(".jpg").read_bytes()[:3] == b"\xff\xd8\xff"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_links_and_sockets_of_an_example_agree(path):
    workflow = read(path)
    nodes = {node["id"]: node for node in workflow["nodes"]}
    for link, source, output, target, _, kind in workflow["links"]:
        assert link in nodes[source]["outputs"][output]["links"]
        assert [one["type"] for one in nodes[target]["inputs"] if one["link"] == link] in ([kind], ["*"])
    linked = [one["link"] for node in nodes.values() for one in node["inputs"] if one["link"] is not None]
    assert sorted(linked) == sorted(link[0] for link in workflow["links"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_stores_one_value_for_each_widget_of_our_nodes(path, install):
    install("ink.safetensors")
    ours = [node for node in read(path)["nodes"] if node["type"] in NODE_CLASS_MAPPINGS]
    assert ours
    for node in ours:
        inputs = NODE_CLASS_MAPPINGS[node["type"]].INPUT_TYPES()
        every = {**inputs.get("required", {}), **inputs.get("optional", {})}
        widgets = [
            name for name, spec in every.items() if isinstance(spec[0], list) or spec[0] not in SOCKETS
        ]
        assert len(node["widgets_values"]) == len(widgets), node["type"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_names_no_folder_of_the_machine_it_was_made_on(path):
    texts = [str(value) for node in read(path)["nodes"] for value in node.get("widgets_values", [])]
    assert not [text for text in texts if re.match(r"/|[A-Za-z]:[\\/]|~", text)]
