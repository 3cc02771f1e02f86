"""Merges beyond the default in a real ComfyUI: lazy patches, methods, filters, formulas, settings, cancelling."""

from typing import Any

import numpy as np
import pytest
import torch

from lora_alloy_testing.comfy_client import Event
from lora_alloy_testing.comfy_server import ComfyServer
from lora_alloy_testing.lora_files import LoraFile, write_lora
from lora_alloy_testing.tiny_models import TinyModel
from lora_alloy_testing.workflow import Node, Workflow

pytestmark = pytest.mark.comfy

SHARED = ("attn1", "ff.net", "in_layers.2")
OWN = ("attn2.to_v", "proj_in")


def two_loras(server: ComfyServer, model: TinyModel, dtype: torch.dtype = torch.float32) -> list[LoraFile]:
    """Both change the shared weights and the text encoder; the first one some of its own, too."""
    text = model.pick("mlp.fc1", clip=True)
    return [
        write_lora(
            server.loras_path / f"merging-{model.family}-{number}.safetensors",
            model,
            [*model.pick(*picks), *text],
            naming="kohya",
            rank=4 + number,
            seed=20 + number,
            dtype=dtype,
        )
        for number, picks in enumerate(((*SHARED, *OWN), SHARED))
    ]


def stack_of(flow: Workflow, files: list[LoraFile], **slots: Any) -> Node:
    names = {f"lora_name_{number}": file.path.name for number, file in enumerate(files, 1)}
    strengths = {f"{kind}_strength_{number}": 1.0 for number in (1, 2) for kind in ("model", "clip")}
    return flow.add(
        "LoRAStackDynamic",
        settings_visibility="advanced",
        lora_count=len(files),
        **{**names, **strengths, **slots},
    )


def legacy(
    flow: Workflow, family: str, stack: Node, seed: int = 21, method: str = "", **widgets: Any
) -> Node:
    """The legacy optimizer on a tiny model; `method` comes over a link, as its socket asks."""
    tiny = flow.add("AlloyTestModel", family=family, seed=seed)
    if method:
        widgets["merge_strategy_override"] = method
    return flow.add(
        "LoRAOptimizer", model=tiny[0], clip=tiny[1], lora_stack=stack[0], output_strength=0.9, **widgets
    )


def weights_of(server: ComfyServer, flow: Workflow, done: Node, name: str) -> dict[str, np.ndarray]:
    flow.add("AlloyTestWeights", model=done[0], clip=done[1], name=name)
    flow.add("PreviewAny", source=done[2])
    server.run(flow.prompt)
    return server.weights(name).deltas()


@pytest.mark.parametrize("family", ["sd15", "flux"])
def test_a_lazy_merge_is_the_same_bits_in_the_model_and_in_the_file(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel], family: str
) -> None:
    model = tiny_models[family]
    picks = {"sd15": (*SHARED, *OWN), "flux": ("qkv", "img_mlp", "linear1")}[family]
    files = [
        write_lora(
            comfy_server.loras_path / f"lazy-{family}-{number}.safetensors",
            model,
            [*model.pick(*picks), *model.pick("mlp.fc1", clip=True)],
            naming="kohya",
            seed=30 + number,
            dtype=torch.float16,
        )
        for number in (1, 2)
    ]
    found = {}
    for kind in ("disabled", "lazy"):
        flow = Workflow()
        done = legacy(flow, family, stack_of(flow, files), method="ties", patch_compression=kind)
        name = f"merging-{family}-{kind}"
        flow.add("SaveMergedLoRA", lora_data=done[4], save_folder="", filename=name)
        flow.add("AlloyTestWeights", model=done[0], clip=done[1], name=name)
        patches = flow.add("AlloyTestPatches", model=done[0])
        shown = comfy_server.run(flow.prompt).outputs[patches.id]
        assert (shown["kinds"], shown["bytes"] == [0]) == (
            (["deferred"], True) if kind == "lazy" else (["diff"], False)
        )
        found[kind] = comfy_server.weights(name)
    kept, lazy = found["disabled"], found["lazy"]
    assert any(delta.any() for delta in kept.deltas().values())
    assert set(lazy.loaded) == set(kept.loaded) and set(kept.loaded)
    for name, weight in kept.loaded.items():
        np.testing.assert_array_equal(lazy.loaded[name], weight)
        np.testing.assert_array_equal(lazy.patched[name], kept.patched[name])
    first, second = (comfy_server.loras_path / f"merging-{family}-{kind}.safetensors" for kind in found)
    assert first.read_bytes() == second.read_bytes()


def plain(**widgets: Any) -> dict[str, Any]:
    """Widgets of a plain sum."""
    return {"method": "weighted_sum", "auto_strength": "disabled", **widgets}


def assert_gained(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == {name for name, delta in expected.items() if delta.any()}
    for name, delta in found.items():
        off = np.linalg.norm(delta - expected[name]) / np.linalg.norm(expected[name])
        assert off < 1e-4, name


def test_a_key_filter_leaves_a_lora_what_it_alone_changes(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    first, second = files = two_loras(comfy_server, tiny_models["sd15"])
    flow = Workflow()
    done = legacy(flow, "sd15", stack_of(flow, files, key_filter_1="unique_only"), **plain())
    found = weights_of(comfy_server, flow, done, "merging-filter")
    own = {name: delta for name, delta in first.deltas.items() if name not in second.deltas}
    assert own
    assert_gained(found, {name: 0.9 * delta for name, delta in {**second.deltas, **own}.items()})


def test_a_conflict_mode_leaves_a_lora_where_the_stack_agrees_with_it(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    first, second = files = two_loras(comfy_server, tiny_models["sd15"])
    flow = Workflow()
    done = legacy(flow, "sd15", stack_of(flow, files, conflict_mode_1="low_conflict"), **plain())
    found = weights_of(comfy_server, flow, done, "merging-conflict")
    expected = {}
    for name, delta in first.deltas.items():
        other = second.deltas.get(name, np.zeros_like(delta))
        expected[name] = 0.9 * (np.where(delta * (delta + other) > 0, delta, 0) + other)
    assert_gained(found, expected)


def test_a_formula_merges_its_parentheses_first(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    first, second = files = two_loras(comfy_server, tiny_models["sd15"])
    flow = Workflow()
    stack = stack_of(flow, [*files, first])
    formula = flow.add("LoRAMergeFormula", lora_stack=stack[0], formula="(1+2):0.5 + 3:0.25")
    done = legacy(flow, "sd15", formula, **plain())
    found = weights_of(comfy_server, flow, done, "merging-formula")
    expected = {
        name: 0.9 * (0.75 * delta + 0.5 * second.deltas.get(name, np.zeros_like(delta)))
        for name, delta in first.deltas.items()
    }
    assert_gained(found, expected)


def test_ties_with_dare_and_refinement_is_in_the_saved_file_what_it_was_in_the_model(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    files = two_loras(comfy_server, tiny_models["sd15"])
    asked = {"method": "ties", "sparsification": "dare", "patch_compression": "disabled"}
    found = {}
    for refinement in ("none", "enhanced"):  # the second one is an earlier version's word
        flow = Workflow()
        done = legacy(flow, "sd15", stack_of(flow, files), **asked, merge_refinement=refinement)
        flow.add("SaveMergedLoRA", lora_data=done[4], save_folder="", filename=f"merging-ties-{refinement}")
        found[refinement] = weights_of(comfy_server, flow, done, f"merging-ties-{refinement}")
    again = Workflow()
    tiny = again.add("AlloyTestModel", family="sd15", seed=21)
    loaded = again.add(
        "LoraLoader",
        model=tiny[0],
        clip=tiny[1],
        lora_name="merging-ties-enhanced.safetensors",
        strength_model=1.0,
        strength_clip=1.0,
    )
    again.add("AlloyTestWeights", model=loaded[0], clip=loaded[1], name="merging-ties-loaded")
    comfy_server.run(again.prompt)
    assert_gained(comfy_server.weights("merging-ties-loaded").deltas(), found["enhanced"])
    assert any(not np.allclose(found["none"][name], found["enhanced"][name]) for name in found["none"])


def test_settings_over_their_nodes_are_the_same_as_on_the_legacy_node(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    files = two_loras(comfy_server, tiny_models["sd15"])
    asked = {"auto_strength": "disabled", "optimization_mode": "global", "strategy_set": "basic"}
    flow = Workflow()
    done = legacy(flow, "sd15", stack_of(flow, files), **asked, decision_smoothing=0.5)
    direct = weights_of(comfy_server, flow, done, "merging-direct")

    flow = Workflow()
    shared = {"normalize_keys": "enabled", "architecture_preset": "acestep", "auto_strength_floor": -1.0}
    shared |= {"decision_smoothing": 0.5, "smooth_slerp_gate": False, "vram_budget": 0.0}
    merge_settings = flow.add("LoRAMergeSettings", **shared, cache_patches="enabled")
    rest = {"merge_refinement": "standard", "sparsification": "disabled", "sparsification_density": 0.7}
    rest |= {"dare_dampening": 0.0, "patch_compression": "lazy", "svd_device": "cpu"}
    settings = flow.add(
        "LoRAOptimizerSettings",
        **asked,
        **rest,
        free_vram_between_passes="disabled",
        merge_settings=merge_settings[0],
    )
    tiny = flow.add("AlloyTestModel", family="sd15", seed=21)
    done = flow.add(
        "LoRAOptimizerSimple",
        model=tiny[0],
        clip=tiny[1],
        lora_stack=stack_of(flow, files)[0],
        output_strength=0.9,
        settings=settings[0],
    )
    assert_gained(weights_of(comfy_server, flow, done, "merging-settings"), direct)


def interrupted_at(server: ComfyServer, flow: Workflow, node: Node, share: float) -> list[str]:
    """Cancel when a node has come so far, 0 is its beginning; the nodes that were executed all the same."""
    seen: list[float] = []

    def cancel(event: Event) -> None:
        if event.type not in ("progress", "executing") or event.data.get("node") != node.id or seen:
            return
        if (event.data["value"] / event.data["max"] if event.type == "progress" else 0.0) >= share:
            seen.append(share)
            server.interrupt()

    run = server.run(flow.prompt, expect="interrupted", on_event=cancel, timeout=60)
    assert seen
    return [data["node"] for data in run.of("executed")]


def test_cancelling_ties_midway_hands_on_nothing_and_keeps_nothing(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    model = tiny_models["sd15"]
    files = [
        write_lora(
            comfy_server.loras_path / f"merging-cancel-{number}.safetensors",
            model,
            model.pick(),
            naming="comfyui",
            seed=number,
            dtype=torch.float16,
        )
        for number in (1, 2)
    ]
    flow = Workflow()
    done = legacy(flow, "sd15", stack_of(flow, files), method="ties", seed=22)
    flow.add("PreviewAny", source=done[2])
    save = flow.add("SaveMergedLoRA", lora_data=done[4], save_folder="", filename="merging-cancelled-0")
    path = comfy_server.loras_path / "merging-cancelled-0.safetensors"
    assert interrupted_at(comfy_server, flow, done, 0.7) == []
    assert not path.exists()
    # Nothing of it was kept: it runs again from its beginning. Then saving is cancelled in its turn; so small a file
    # may be done before the request arrives, and then another one is tried.
    for number in range(1, 6):
        flow.prompt[save.id]["inputs"]["filename"] = f"merging-cancelled-{number}"
        path = comfy_server.loras_path / f"merging-cancelled-{number}.safetensors"
        if save.id not in interrupted_at(comfy_server, flow, save, 0.0):
            break
    else:
        pytest.fail("no save was cancelled in five tries")
    assert not path.exists() and not list(path.parent.glob(".*.tmp"))
    run = comfy_server.run(flow.prompt)
    assert path.exists()
    assert "Read back, the largest difference to the merge is 0.0e+00" in run.outputs[save.id]["text"][0]
    steps = [data["value"] for data in run.of("progress") if data["node"] == save.id]
    assert steps == sorted(steps) and len(set(steps)) >= 3 and steps[-1] == 3000
