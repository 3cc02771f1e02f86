"""The harness itself: a real ComfyUI and tiny real models, its own LoRA loader compared with the formula."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lora_alloy_testing.comfy_client import Event, PromptError
from lora_alloy_testing.comfy_server import PACK_NAME, ComfyServer, ServerError, WeightsDump
from lora_alloy_testing.comfy_tree import ComfyTree
from lora_alloy_testing.lora_files import NAMINGS, LoraFile, Naming, names_of, write_lora
from lora_alloy_testing.tiny_models import FAMILIES, TinyModel
from lora_alloy_testing.workflow import Node, Workflow

pytestmark = pytest.mark.comfy

PICKS = {
    "sd15": ("attn1", "attn2.to_v", "ff.net", "in_layers.2", "proj_in"),
    "sdxl": ("attn1", "attn2.to_k", "ff.net", "proj_in", "skip_connection"),
    "flux": ("qkv", "img_mlp", "linear1", "linear2", "final_layer.adaLN"),
}
TEXT_PICKS = ("self_attn", "mlp.fc1", "SelfAttention.q")
# ComfyUI's loader does not map `unet.…attn1.to_q`, so it reads only a part of such a file
READABLE = [
    (family, naming)
    for family in FAMILIES
    for naming in NAMINGS
    if family == "flux" or naming in ("kohya", "comfyui")
]


def norm_ratio(difference: np.ndarray, reference: np.ndarray) -> float:
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))


def picked(model: TinyModel, naming: Naming) -> list[str]:
    named = names_of(model, naming)
    wanted = model.pick(*PICKS[model.family]) + model.pick(*TEXT_PICKS, clip=True)
    return [weight for weight in wanted if weight in named]


def load_lora(
    flow: Workflow, tiny: Node, file: LoraFile, strength_model: float, strength_clip: float
) -> Node:
    return flow.add(
        "LoraLoader",
        model=tiny[0],
        clip=tiny[1],
        lora_name=file.path.name,
        strength_model=strength_model,
        strength_clip=strength_clip,
    )


def assert_gained(dump: WeightsDump, file: LoraFile, strength_model: float, strength_clip: float) -> None:
    """Exactly the weights of `file` gained its deltas, and ComfyUI ran with what it computed."""
    gained = dump.deltas()
    assert set(gained) == set(file.deltas)
    for weight, delta in gained.items():
        strength = strength_clip if weight.startswith("text_encoders.") else strength_model
        expected = strength * file.deltas[weight]
        assert norm_ratio(delta - expected, expected) < 1e-5, weight
        np.testing.assert_array_equal(dump.loaded[f"{weight}.weight"], dump.patched[f"{weight}.weight"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lora_moves_the_latents_and_adds_its_formula_to_the_weights(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel], family: str
) -> None:
    model, stem = tiny_models[family], f"harness-{family}"
    path = comfy_server.loras_path / f"{stem}.safetensors"
    file = write_lora(path, model, picked(model, "kohya"), naming="kohya", alpha=2.0, seed=5)
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family=family, seed=1)
    flow.sample(f"{stem}-plain", model=tiny[0], clip=tiny[1])
    lora = load_lora(flow, tiny, file, 0.7, -0.4)
    flow.sample(f"{stem}-moved", model=lora[0], clip=lora[1])
    flow.sample(f"{stem}-text", model=tiny[0], clip=lora[1])
    flow.add("AlloyTestWeights", model=lora[0], clip=lora[1], name=f"{stem}-weights")
    run = comfy_server.run(flow.prompt)

    assert "lora key not loaded" not in run.log
    plain, moved, text = (comfy_server.latent(f"{stem}-{each}") for each in ("plain", "moved", "text"))
    assert plain.shape == (1, 16 if family == "flux" else 4, 8, 8)
    assert all(np.isfinite(latent).all() for latent in (plain, moved, text))
    assert norm_ratio(moved - plain, plain) > 0.1
    assert norm_ratio(text - plain, plain) > 1e-3, "the text encoder is not used"
    assert_gained(comfy_server.weights(f"{stem}-weights"), file, 0.7, -0.4)


@pytest.mark.parametrize(("family", "naming"), READABLE)
def test_every_naming_comfyui_reads_gives_the_same_weights(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel], family: str, naming: Naming
) -> None:
    model, stem = tiny_models[family], f"naming-{family}-{naming}"
    path = comfy_server.loras_path / f"{stem}.safetensors"
    dtype = torch.bfloat16 if naming == "ai-toolkit" else torch.float16
    file = write_lora(
        path, model, picked(model, naming), naming=naming, rank=3, alpha=6.0, seed=6, dtype=dtype
    )
    flow = Workflow()
    lora = load_lora(flow, flow.add("AlloyTestModel", family=family, seed=2), file, 1.0, 1.0)
    flow.add("AlloyTestWeights", model=lora[0], clip=lora[1], name=stem)
    run = comfy_server.run(flow.prompt)

    assert "lora key not loaded" not in run.log
    assert_gained(comfy_server.weights(stem), file, 1.0, 1.0)


def test_one_lora_has_the_same_deltas_in_every_naming(
    tiny_models: dict[str, TinyModel], tmp_path: Path
) -> None:
    for family, model in tiny_models.items():
        weights = model.pick(*PICKS[family])
        files = [
            write_lora(tmp_path / f"{family}-{naming}.safetensors", model, weights, naming=naming, seed=8)
            for naming in NAMINGS
        ]
        for file in files[1:]:
            for weight in weights:
                np.testing.assert_array_equal(file.deltas[weight], files[0].deltas[weight])


def test_progress_arrives_while_sampling_and_an_interrupt_ends_it(comfy_server: ComfyServer) -> None:
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sd15", seed=3)
    flow.sample("interrupted", model=tiny[0], clip=tiny[1], steps=2000)

    def interrupt_at_first_progress(event: Event) -> None:
        if event.type == "progress":
            comfy_server.interrupt()

    run = comfy_server.run(
        flow.prompt, expect="interrupted", on_event=interrupt_at_first_progress, timeout=60
    )

    assert run.of("progress")[0]["max"] == 2000
    assert run.of("progress")[-1]["value"] < 2000
    assert not (comfy_server.output_path / "interrupted.safetensors").exists()
    short = Workflow()
    tiny = short.add("AlloyTestModel", family="sd15", seed=3)
    short.sample("after-interrupt", model=tiny[0], clip=tiny[1], steps=1)
    assert comfy_server.run(short.prompt).outputs


def test_a_prompt_with_an_unknown_lora_is_rejected_by_name(comfy_server: ComfyServer) -> None:
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sd15", seed=1)
    lora = flow.add("LoraLoaderModelOnly", model=tiny[0], lora_name="absent.safetensors", strength_model=1.0)
    flow.add("AlloyTestWeights", model=lora[0], name="rejected")

    with pytest.raises(PromptError, match=r"absent\.safetensors"):
        comfy_server.run(flow.prompt)


def test_an_error_in_a_node_reaches_the_test_with_its_traceback(comfy_server: ComfyServer) -> None:
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sd15", seed=1)
    flow.add("AlloyTestWeights", model=tiny[0], name="../elsewhere")

    run = comfy_server.run(flow.prompt, expect="error")
    assert "AlloyTestWeights (node 2): ValueError: '../elsewhere' is not a plain file name." in run.error
    assert "in _output_path" in run.error

    again = Workflow()
    again.add("AlloyTestWeights", model=again.add("AlloyTestModel", family="sd15", seed=4)[0], name="a/b")
    with pytest.raises(ServerError, match="error instead of success"):
        comfy_server.run(again.prompt)


def test_a_pack_that_fails_to_import_fails_the_start_with_its_traceback(
    comfy_tree: ComfyTree, tmp_path: Path
) -> None:
    pack_path = tmp_path / "pack"
    (pack_path / ".venv").mkdir(parents=True)
    (pack_path / "tests").mkdir()
    (pack_path / "__init__.py").write_text("raise RuntimeError('this pack is broken')\n")

    with (
        pytest.raises(ServerError, match="this pack is broken"),
        ComfyServer(comfy_tree, tmp_path / "base", pack_path),
    ):
        pytest.fail("it started")
    copied = tmp_path / "base" / "custom_nodes" / PACK_NAME
    assert {path.name for path in copied.iterdir()} <= {"__init__.py", "__pycache__"}
