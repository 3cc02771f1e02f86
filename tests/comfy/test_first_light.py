"""The main job in a real ComfyUI: stack, optimize, sample, save; then the core loader on the saved file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from lora_alloy_testing.comfy_client import Event
from lora_alloy_testing.comfy_server import ComfyServer
from lora_alloy_testing.lora_files import LoraFile, write_lora
from lora_alloy_testing.tiny_models import FAMILIES, TinyModel
from lora_alloy_testing.workflow import Node, Workflow

pytestmark = pytest.mark.comfy

PICKS = {
    "sd15": ("attn1", "attn2.to_v", "ff.net", "in_layers.2", "proj_in"),
    "sdxl": ("attn1", "attn2.to_k", "ff.net", "proj_in", "skip_connection"),
    "flux": ("qkv", "img_mlp", "linear1", "linear2", "final_layer.adaLN"),
}
TEXT_PICKS = ("self_attn", "mlp.fc1")
NAMINGS = ("kohya", "diffusers", "ai-toolkit")
STRENGTHS = ((0.8, 0.5), (0.6, 0.6), (-0.4, 0.0))


def three_loras(folder: Path, model: TinyModel, dtype: torch.dtype = torch.float32) -> list[LoraFile]:
    """One LoRA of each trainer's naming; ranks and alphas differ."""
    files = []
    for number, naming in enumerate(NAMINGS):
        weights = model.pick(*PICKS[model.family])
        if naming != "ai-toolkit":
            weights = [*weights, *model.pick(*TEXT_PICKS, clip=True)]
        path = folder / f"light-{model.family}-{naming}.safetensors"
        alpha = (2.0, None, None)[number]
        files.append(
            write_lora(
                path,
                model,
                weights,
                naming=naming,
                rank=(4, 6, 3)[number],
                alpha=alpha,
                seed=number,
                dtype=dtype,
            )
        )
    return files


def dynamic_stack(flow: Workflow, files: list[LoraFile], preserved: int = 1) -> Node:
    slots: dict[str, object] = {"settings_visibility": "advanced", "lora_count": len(files)}
    for slot, (file, (strength, clip)) in enumerate(zip(files, STRENGTHS, strict=True), 1):
        slots[f"lora_name_{slot}"] = file.path.name
        slots[f"model_strength_{slot}"] = strength
        slots[f"clip_strength_{slot}"] = clip
        slots[f"preserve_{slot}"] = slot == preserved
    return flow.add("LoRAStackDynamic", **slots)


def relative(difference: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_saved_lora_is_the_previewed_one_in_the_core_loader(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel], family: str
) -> None:
    files = three_loras(comfy_server.loras_path, tiny_models[family])
    stem = f"light-{family}"
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family=family, seed=11)
    flow.sample(f"{stem}-plain", model=tiny[0], clip=tiny[1])
    stack = dynamic_stack(flow, files)
    done = flow.add(
        "LoRAOptimizerSimple",
        model=tiny[0],
        clip=tiny[1],
        lora_stack=stack[0],
        output_strength=0.9,
        clip_strength_multiplier=0.8,
    )
    flow.sample(f"{stem}-preview", model=done[0], clip=done[1])
    flow.add("AlloyTestWeights", model=done[0], clip=done[1], name=f"{stem}-preview-weights")
    flow.add("SaveMergedLoRA", lora_data=done[4], save_folder="", filename=f"merged/{stem}")
    run = comfy_server.run(flow.prompt)
    assert run.of("progress"), "no progress was shown"

    saved = comfy_server.loras_path / "merged" / f"{stem}.safetensors"
    again = Workflow()
    tiny = again.add("AlloyTestModel", family=family, seed=11)
    loaded = again.add(
        "LoraLoader",
        model=tiny[0],
        clip=tiny[1],
        lora_name=str(saved.relative_to(comfy_server.loras_path)),
        strength_model=1.0,
        strength_clip=1.0,
    )
    again.sample(f"{stem}-loaded", model=loaded[0], clip=loaded[1])
    again.add("AlloyTestWeights", model=loaded[0], clip=loaded[1], name=f"{stem}-loaded-weights")
    reloaded = comfy_server.run(again.prompt)
    assert "lora key not loaded" not in reloaded.log

    plain, preview, loaded_latent = (
        comfy_server.latent(f"{stem}-{name}") for name in ("plain", "preview", "loaded")
    )
    assert relative(preview - plain, plain) > 0.05, "the merge changed nothing"
    assert relative(loaded_latent - preview, preview) < 1e-3
    shown = comfy_server.weights(f"{stem}-preview-weights")
    kept = comfy_server.weights(f"{stem}-loaded-weights")
    assert set(shown.loaded) == set(kept.loaded)
    for name, weight in shown.loaded.items():
        assert relative(kept.loaded[name] - weight, weight) < 1e-4, name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_sum_adds_every_lora_at_its_strength(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel], family: str
) -> None:
    files = three_loras(comfy_server.loras_path, tiny_models[family])
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family=family, seed=12)
    # Preserving every LoRA is the plain sum, whatever the method.
    stack = dynamic_stack(flow, files)
    flow.prompt[stack.id]["inputs"].update({f"preserve_{slot}": True for slot in (1, 2, 3)})  # type: ignore[attr-defined]
    done = flow.add("LoRAOptimizerSimple", model=tiny[0], clip=tiny[1], lora_stack=stack[0])
    flow.add("AlloyTestWeights", model=done[0], clip=done[1], name=f"light-sum-{family}")
    comfy_server.run(flow.prompt)

    expected: dict[str, np.ndarray] = {}
    for file, (strength, clip) in zip(files, STRENGTHS, strict=True):
        for name, delta in file.deltas.items():
            share = clip if name.startswith("text_encoders.") else strength
            expected[name] = expected.get(name, np.zeros_like(delta)) + share * delta
    gained = comfy_server.weights(f"light-sum-{family}").deltas()
    assert set(gained) == {name for name, delta in expected.items() if delta.any()}
    for name, delta in gained.items():
        assert relative(delta - expected[name], expected[name]) < 1e-4, name


def test_without_clip_the_report_says_what_is_left_out_and_the_model_part_is_merged(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    files = three_loras(comfy_server.loras_path, tiny_models["sdxl"])
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sdxl", seed=13)
    done = flow.add("LoRAOptimizerSimple", model=tiny[0], lora_stack=dynamic_stack(flow, files)[0])
    flow.add("AlloyTestWeights", model=done[0], name="light-no-clip")
    flow.add("PreviewAny", source=done[2])
    run = comfy_server.run(flow.prompt)

    assert "no CLIP is connected" in str(run.history)
    assert comfy_server.weights("light-no-clip").deltas()


def test_a_lora_of_another_family_stops_the_merge_with_a_sentence(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    files = three_loras(comfy_server.loras_path, tiny_models["flux"])
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sd15", seed=14)
    done = flow.add(
        "LoRAOptimizerSimple", model=tiny[0], clip=tiny[1], lora_stack=dynamic_stack(flow, files)[0]
    )
    flow.add("AlloyTestWeights", model=done[0], name="light-wrong-family")
    run = comfy_server.run(flow.prompt, expect="error")

    assert "Load the model these LoRAs were trained for" in run.error


def test_an_interrupt_stops_a_merge_and_nothing_is_saved(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    files = three_loras(comfy_server.loras_path, tiny_models["sdxl"], torch.float16)
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sdxl", seed=15)
    stack = dynamic_stack(flow, files)
    done = flow.add("LoRAOptimizerSimple", model=tiny[0], clip=tiny[1], lora_stack=stack[0])
    flow.add("SaveMergedLoRA", lora_data=done[4], save_folder="", filename="light-interrupted")

    def interrupt_at_first_progress(event: Event) -> None:
        if event.type == "progress":
            comfy_server.interrupt()

    comfy_server.run(flow.prompt, expect="interrupted", on_event=interrupt_at_first_progress, timeout=60)

    assert not (comfy_server.loras_path / "light-interrupted.safetensors").exists()
    assert not list(comfy_server.loras_path.glob(".*.tmp"))


def test_a_trained_lora_is_never_overwritten(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    files = three_loras(comfy_server.loras_path, tiny_models["sd15"])
    before = files[0].path.read_bytes()
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sd15", seed=16)
    done = flow.add(
        "LoRAOptimizerSimple", model=tiny[0], clip=tiny[1], lora_stack=dynamic_stack(flow, files)[0]
    )
    flow.add("SaveMergedLoRA", lora_data=done[4], save_folder="", filename=files[0].path.stem)
    run = comfy_server.run(flow.prompt, expect="error")

    assert "choose another name" in run.error
    assert files[0].path.read_bytes() == before


def test_saving_again_replaces_the_earlier_merge_and_its_header_names_the_sources(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    files = three_loras(comfy_server.loras_path, tiny_models["sd15"])
    for seed in (17, 18):
        flow = Workflow()
        tiny = flow.add("AlloyTestModel", family="sd15", seed=seed)
        done = flow.add(
            "LoRAOptimizerSimple", model=tiny[0], clip=tiny[1], lora_stack=dynamic_stack(flow, files)[0]
        )
        flow.add(
            "SaveMergedLoRA",
            lora_data=done[4],
            save_folder="/of/another/machine",
            filename="light-again",
            save_rank=4,
            prompt="a kettle",
        )
        comfy_server.run(flow.prompt)

    with safe_open(comfy_server.loras_path / "light-again.safetensors", "pt") as saved:
        metadata = saved.metadata()
        ranks = {
            saved.get_tensor(name).shape[0] for name in saved.keys() if name.endswith("lora_down.weight")
        }
    assert metadata["prompt"] == "a kettle"
    assert metadata["merge_architecture"] == "sd15" and metadata["merge_mode"] == "auto"
    assert metadata["merge_output_strength"] == "1" and metadata["merge_bake_strength"] == "True"
    assert all(file.path.name in metadata["source_loras"] for file in files)
    assert ranks <= {1, 2, 3, 4}
