"""The AutoTuner in a real ComfyUI: sweep, select, save, load, replay, cancel."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from lora_alloy_testing.comfy_client import Event
from lora_alloy_testing.comfy_server import ComfyServer, WeightsDump
from lora_alloy_testing.lora_files import LoraFile, write_lora
from lora_alloy_testing.tiny_models import TinyModel
from lora_alloy_testing.workflow import Node, Workflow

pytestmark = pytest.mark.comfy

SHARED = ("attn1", "ff.net", "in_layers.2")
OWN = ("attn2.to_v", "proj_in")


def two_loras(server: ComfyServer, model: TinyModel, name: str = "tuning") -> list[LoraFile]:
    """Both change the shared weights and the text encoder; the first one some of its own, too."""
    text = model.pick("mlp.fc1", clip=True)
    return [
        write_lora(
            server.loras_path / f"{name}-{number}.safetensors",
            model,
            [*model.pick(*picks), *text],
            naming="kohya",
            rank=4 + number,
            seed=40 + number,
            dtype=torch.float16,
        )
        for number, picks in enumerate(((*SHARED, *OWN), SHARED))
    ]


def stack_of(flow: Workflow, files: list[LoraFile]) -> Node:
    names = {f"lora_name_{number}": file.path.name for number, file in enumerate(files, 1)}
    return flow.add("LoRAStackDynamic", lora_count=len(files), **names)


def tuner(flow: Workflow, files: list[LoraFile], seed: int = 21, **widgets: Any) -> tuple[Node, Node, Node]:
    """The tiny model, the stack, and an AutoTuner on both."""
    tiny = flow.add("AlloyTestModel", family="sd15", seed=seed)
    stack = stack_of(flow, files)
    widgets = {"output_strength": 1.0} | widgets
    node = flow.add("LoRAAutoTuner", model=tiny[0], clip=tiny[1], lora_stack=stack[0], **widgets)
    return tiny, stack, node


def dump(flow: Workflow, done: Node, name: str) -> None:
    flow.add("AlloyTestWeights", model=done[0], clip=done[1], name=name)


def assert_same(one: WeightsDump, other: WeightsDump) -> None:
    assert set(one.loaded) == set(other.loaded) and one.loaded
    for name, weight in one.loaded.items():
        np.testing.assert_array_equal(other.loaded[name], weight, err_msg=name)


def test_what_was_tuned_is_selected_saved_loaded_and_replayed_bit_for_bit(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    files = two_loras(comfy_server, tiny_models["sd15"])
    flow = Workflow()
    tiny, stack, node = tuner(flow, files, output_strength=0.9, selection=2, cache_patches="disabled")
    dump(flow, node, "tuning-second")
    report, analysis = flow.add("PreviewAny", source=node[2]), flow.add("PreviewAny", source=node[3])
    saved = flow.add(
        "SaveTunerData",
        tuner_data=node[4],
        save_folder="",
        filename="tests/tuned",
        overwrite=True,
        description="two LoRAs",
    )
    file = flow.add("SaveMergedLoRA", lora_data=node[5], save_folder="", filename="tuning-saved")
    chosen = {}
    for rank in (1, 2):
        chosen[rank] = flow.add(
            "LoRAMergeSelector",
            model=tiny[0],
            clip=tiny[1],
            lora_stack=stack[0],
            tuner_data=node[4],
            selection=rank,
            output_strength=0.9,
        )
        dump(flow, chosen[rank], f"tuning-selected-{rank}")
    run = comfy_server.run(flow.prompt, timeout=300)
    told = run.outputs[report.id]["text"][0]
    assert "> 2." in told and "Rank 2 is applied" in told and "own_foreign" in told
    assert "merged for" in run.outputs[analysis.id]["text"][0]
    assert "0.0e+00" in run.outputs[file.id]["text"][0]
    second = comfy_server.weights("tuning-second")
    assert_same(second, comfy_server.weights("tuning-selected-2"))
    best = comfy_server.weights("tuning-selected-1")
    assert any(not np.array_equal(best.loaded[name], second.loaded[name]) for name in best.loaded)
    steps = [data["value"] for data in run.of("progress") if data["node"] == node.id]
    assert steps == sorted(steps) and len(set(steps)) > 20

    path = comfy_server.base_path / "models" / "tuner_data" / "tests" / "tuned.tuner"
    assert run.outputs[saved.id]["text"][0].endswith(f"{path}.")
    data = json.loads(path.read_text())
    assert data["version"] == 1 and data["description"] == "two LoRAs" and len(data["top_n"]) == 3

    again = Workflow()
    tiny, stack = again.add("AlloyTestModel", family="sd15", seed=21), stack_of(again, files)
    loaded = again.add("LoadTunerData", tuner_data_file="tests/tuned.tuner")
    info = again.add("PreviewAny", source=loaded[3])
    common = {"model": tiny[0], "clip": tiny[1], "lora_stack": stack[0], "output_strength": 0.9}
    replayed = again.add("LoRAMergeSelector", **common, tuner_data=loaded[0], selection=2)
    dump(again, replayed, "tuning-replayed")
    first = again.add("LoRAOptimizerSimple", **common, tuner_data=loaded[0])
    dump(again, first, "tuning-followed")
    legacy = again.add("LoRAOptimizer", **common, tuner_data=loaded[0], settings_source="from_tuner_data")
    dump(again, legacy, "tuning-legacy")
    lora = again.add(
        "LoraLoader",
        model=tiny[0],
        clip=tiny[1],
        lora_name="tuning-saved.safetensors",
        strength_model=1.0,
        strength_clip=1.0,
    )
    dump(again, lora, "tuning-lora")
    outside = again.add("LoRAMergeSelector", **common, tuner_data=loaded[0], selection=9)
    refused = again.add("PreviewAny", source=outside[2])
    run = comfy_server.run(again.prompt, timeout=300)
    assert "two LoRAs" in run.outputs[info.id]["text"][0]
    assert "no rank 9" in run.outputs[refused.id]["text"][0]
    assert_same(second, comfy_server.weights("tuning-replayed"))
    assert_same(best, comfy_server.weights("tuning-followed"))
    assert_same(best, comfy_server.weights("tuning-legacy"))
    shown, merged = second.deltas(), comfy_server.weights("tuning-lora").deltas()
    for name, delta in shown.items():
        assert np.linalg.norm(merged[name] - delta) <= 2e-3 * np.linalg.norm(delta) + 1e-6, name


def test_the_optimizer_tunes_by_its_settings_and_a_second_run_tries_nothing_again(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    files = two_loras(comfy_server, tiny_models["sd15"], "tuning-settings")
    flow = Workflow()
    tiny, stack = flow.add("AlloyTestModel", family="sd15", seed=21), stack_of(flow, files)
    settings = flow.add(
        "LoRAAutoTunerSettings",
        top_n=2,
        scoring_svd="enabled",  # a word of earlier versions, as the one after the next
        scoring_device="gpu",
        scoring_speed="turbo",
        scoring_formula="v2",
        diff_cache_mode="auto",
        diff_cache_ram_pct=0.5,
    )
    done = flow.add(
        "LoRAOptimizerSimple",
        model=tiny[0],
        clip=tiny[1],
        lora_stack=stack[0],
        output_strength=0.9,
        clip_strength_multiplier=1.0,
        settings=settings[0],
    )
    report = flow.add("PreviewAny", source=done[2])
    dump(flow, done, "tuning-simple")
    first = comfy_server.run(flow.prompt, timeout=300)
    told = first.outputs[report.id]["text"][0]
    assert "LoRA AutoTuner: the best 2" in told and "--- The merge ---" in told
    assert "ranked by own_foreign" in told and "tuned before" not in told
    # The same base model, as ComfyUI keeps it, and another strength of the output.
    flow.prompt[done.id]["inputs"]["output_strength"] = 0.5
    second = comfy_server.run(flow.prompt, timeout=300)
    assert "tuned before" in second.outputs[report.id]["text"][0]
    assert len([data for data in second.of("progress") if data["max"] == 3000]) > 0
    assert not [data for data in second.of("progress") if data["max"] > 3000]


def test_tuning_only_hands_the_model_on(comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]) -> None:
    files = two_loras(comfy_server, tiny_models["sd15"], "tuning-only")
    flow = Workflow()
    _, _, node = tuner(flow, files, output_mode="tuning_only", top_n=1)
    dump(flow, node, "tuning-only")
    told = flow.add("PreviewAny", source=node[2])
    run = comfy_server.run(flow.prompt, timeout=300)
    assert not comfy_server.weights("tuning-only").loaded
    assert "Nothing was applied" in run.outputs[told.id]["text"][0]


@pytest.mark.parametrize("share", [0.0, 0.015, 0.045, 0.075, 0.2, 0.6])
def test_cancelling_in_each_phase_hands_on_nothing_and_keeps_nothing(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel], share: float
) -> None:
    files = two_loras(comfy_server, tiny_models["sd15"], f"tuning-cancel-{share}")
    flow = Workflow()
    # By a formula of old, so that all of them are merged; before that come three passes of 33.
    _, _, node = tuner(flow, files, seed=23, top_n=10, scoring_formula="v2 (legacy)")
    save = flow.add(
        "SaveTunerData", tuner_data=node[4], save_folder="", filename=f"cancelled-{share}", overwrite=True
    )
    seen: list[float] = []

    def cancel(event: Event) -> None:
        if event.type not in ("progress", "executing") or event.data.get("node") != node.id or seen:
            return
        if (event.data["value"] / event.data["max"] if event.type == "progress" else 0.0) >= share:
            seen.append(share)
            comfy_server.interrupt()

    run = comfy_server.run(flow.prompt, expect="interrupted", on_event=cancel, timeout=300)
    assert seen and [data["node"] for data in run.of("executed")] == []
    assert not list((comfy_server.base_path / "models" / "tuner_data").glob(f"**/*cancelled-{share}*"))
    if share == 0.6:
        again = comfy_server.run(flow.prompt, timeout=300)
        assert again.outputs[save.id]["text"][0].startswith("Saved the tuning result")
        steps = [data["value"] for data in again.of("progress") if data["node"] == node.id]
        assert max(steps) > 3000  # all of it again: nothing was remembered
