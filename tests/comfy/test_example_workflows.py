"""The example workflows in a real front-end: they open whole, and run with LoRAs chosen as they say."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from lora_alloy_testing.browser import CHROMIUM, RENDERERS, FrontEnd, chromium
from lora_alloy_testing.comfy_server import PACK_NAME, ComfyServer
from lora_alloy_testing.lora_files import write_lora
from lora_alloy_testing.tiny_models import TinyModel

pytestmark = [
    pytest.mark.browser,
    pytest.mark.comfy,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

FOLDER = Path(__file__).resolve().parents[2] / "example_workflows"
FIRST = FOLDER / "lora_alloy_first_merge.json"
# A tiny model has neither a checkpoint file nor a VAE.
LOADER, PICTURE = "CheckpointLoaderSimple", ("VAEDecode", "SaveImage")


def test_the_template_browser_lists_every_example(comfy_server: ComfyServer) -> None:
    listed = comfy_server.request("/workflow_templates")[PACK_NAME]
    assert sorted(listed) == sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize("renderer", RENDERERS)
def test_the_first_merge_opens_whole_and_runs(
    comfy_server: ComfyServer,
    tiny_models: dict[str, TinyModel],
    renderer: str,
) -> None:
    model = tiny_models["sd15"]
    for seed, name in enumerate(("example-a", "example-b")):
        path = comfy_server.loras_path / f"{name}.safetensors"
        write_lora(path, model, model.pick("attn1"), naming="kohya", seed=seed)
    workflow = json.loads(FIRST.read_text(encoding="utf-8"))
    ids = {node["type"]: node["id"] for node in workflow["nodes"]}
    with chromium() as browser, FrontEnd(browser, comfy_server, renderer) as front_end:
        front_end.load(workflow)
        again = {node["id"]: node for node in front_end.save()["nodes"]}
        for node in workflow["nodes"]:
            assert again[node["id"]]["type"] == node["type"]
            stored = node.get("widgets_values", [])
            assert again[node["id"]].get("widgets_values", [])[: len(stored)] == stored
        assert len(front_end.save()["links"]) == len(workflow["links"])
        front_end.set(
            ids["LoRAStackDynamic"],
            lora_name_1="example-a.safetensors",
            lora_name_2="example-b.safetensors",
            preserve_2=True,
        )
        front_end.set(ids["SaveMergedLoRA"], filename=f"example-{renderer}")
        front_end.set(ids["KSampler"], steps=1)
        front_end.set(ids["EmptyLatentImage"], width=64, height=64)
        prompt: dict[str, dict[str, Any]] = front_end.script("async () => (await app.graphToPrompt()).output")
        assert front_end.faults == []
    prompt = {key: node for key, node in prompt.items() if node["class_type"] not in PICTURE}
    prompt[str(ids[LOADER])] = {"class_type": "AlloyTestModel", "inputs": {"family": "sd15", "seed": 5}}
    sampled = [str(ids["KSampler"]), 0]
    prompt["latent"] = {
        "class_type": "AlloyTestLatent",
        "inputs": {"samples": sampled, "name": f"example-{renderer}"},
    }
    run = comfy_server.run(prompt)
    assert "2 LoRAs merged for Stable Diffusion 1.5" in str(run.outputs[str(ids["PreviewAny"])])
    assert (comfy_server.loras_path / f"example-{renderer}.safetensors").exists()
    assert comfy_server.latent(f"example-{renderer}").shape == (1, 4, 8, 8)


def test_the_first_merge_runs_before_a_lora_is_chosen_and_saves_nothing(comfy_server: ComfyServer) -> None:
    workflow = json.loads(FIRST.read_text(encoding="utf-8"))
    (stack,) = (node for node in workflow["nodes"] if node["type"] == "LoRAStackDynamic")
    assert "None" in stack["widgets_values"] and not any("." in str(one) for one in stack["widgets_values"])
    before = set(comfy_server.loras_path.rglob("*"))
    run = comfy_server.run(
        {
            "1": {"class_type": "AlloyTestModel", "inputs": {"family": "sd15", "seed": 5}},
            "2": {"class_type": "LoRAStackDynamic", "inputs": {}},
            "3": {
                "class_type": "LoRAOptimizerSimple",
                "inputs": {"model": ["1", 0], "lora_stack": ["2", 0], "clip": ["1", 1]},
            },
            "4": {
                "class_type": "SaveMergedLoRA",
                "inputs": {"lora_data": ["3", 4], "save_folder": "", "filename": "first_merge"},
            },
        }
    )
    assert "nothing was saved" in str(run.outputs["4"])
    assert set(comfy_server.loras_path.rglob("*")) == before
