"""The stack nodes without a screen: prompts by input name, on every ComfyUI there is."""

import json
import os

import pytest

from lora_alloy_testing.comfy_server import ComfyServer

pytestmark = pytest.mark.comfy


@pytest.fixture
def lora(comfy_server: ComfyServer):
    path = comfy_server.loras_path / "stack test" / "quill.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"old")
    return path


def prompt(node_type: str, **inputs: object) -> dict[str, object]:
    """A stack node whose output is shown as text."""
    return {
        "stack": {"class_type": node_type, "inputs": inputs},
        "shown": {"class_type": "PreviewAny", "inputs": {"source": ["stack", 0]}},
    }


def shown(run) -> list[list[object]]:
    return json.loads(run.outputs["shown"]["text"][0])


def test_a_prompt_names_only_what_it_means(comfy_server: ComfyServer, lora):
    run = comfy_server.run(prompt("LoRAStackDynamic", lora_name_2="quill", strength_2=0.5, preserve_2=True))
    assert shown(run) == [["stack test/quill.safetensors", 0.5, 0.5, "all", "all", True]]
    run = comfy_server.run(prompt("LoRAStack", lora_name="stack test\\quill.safetensors"))
    assert shown(run) == [["stack test/quill.safetensors", 1.0, 1.0]]


def test_chained_stacks_keep_their_order(comfy_server: ComfyServer, lora):
    flow = prompt("LoRAStack", lora_name="quill", strength=2, lora_stack=["dynamic", 0])
    flow["dynamic"] = {"class_type": "LoRAStackDynamic", "inputs": {"lora_name_1": "quill", "strength_1": -1}}
    assert [entry[1] for entry in shown(comfy_server.run(flow))] == [-1, 2]


def test_a_missing_lora_stops_the_prompt_with_its_name_and_the_closest(comfy_server: ComfyServer, lora):
    run = comfy_server.run(prompt("LoRAStackDynamic", lora_name_1="quil.safetensors"), expect="error")
    assert "slot 1: no LoRA called 'quil.safetensors' is installed" in run.error
    assert "'stack test/quill.safetensors'" in run.error


def test_a_value_no_menu_offers_is_refused_in_a_sentence(comfy_server: ComfyServer, lora):
    run = comfy_server.run(prompt("LoRAStack", lora_name="quill", strength=99), expect="error")
    assert "`strength` of LoRA Stack is 99; it must lie between -10 and 10" in run.error


@pytest.mark.parametrize(
    ("node_type", "name"), [("LoRAStack", "lora_name"), ("LoRAStackDynamic", "lora_name_1")]
)
def test_touching_a_file_runs_nothing_and_replacing_it_does(comfy_server: ComfyServer, lora, node_type, name):
    flow = prompt(node_type, **{name: "quill"})

    def ran() -> bool:
        cached = comfy_server.run(flow).of("execution_cached")
        return "stack" not in {node for event in cached for node in event["nodes"]}

    ran()
    assert not ran()
    os.utime(lora, (1, 1))
    assert not ran()
    lora.write_bytes(b"new")
    assert ran()
    assert not ran()


def test_log_lines_of_the_nodes_carry_our_name(comfy_server: ComfyServer, lora):
    comfy_server.run(prompt("LoRAStack", lora_name="elsewhere/quill.safetensors"))
    assert "[LoRA Alloy] 'elsewhere/quill.safetensors' is not installed" in comfy_server.log()
