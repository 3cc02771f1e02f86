"""What scripts send by mistake: a sentence each, and the server goes on."""

import os
import sys
from pathlib import Path

import pytest

from lora_alloy_testing.comfy_server import ComfyServer
from lora_alloy_testing.lora_files import write_lora
from lora_alloy_testing.tiny_models import TinyModel
from lora_alloy_testing.workflow import Workflow

pytestmark = pytest.mark.comfy


def merging(name: str, seed: int, filename: str, **strengths: float) -> Workflow:
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sd15", seed=seed)
    stack = flow.add("LoRAStack", lora_name=name)
    done = flow.add("LoRAOptimizerSimple", model=tiny[0], clip=tiny[1], lora_stack=stack[0], **strengths)
    flow.add("PreviewAny", source=done[2])
    flow.add("SaveMergedLoRA", lora_data=done[4], save_folder="", filename=filename)
    return flow


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names that are no UTF-8")
def test_half_a_character_in_a_name_ends_the_prompt_and_not_the_server(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    model = tiny_models["sd15"]
    path = comfy_server.loras_path / "hostile-name.safetensors"
    write_lora(path, model, model.pick("attn1"), naming="kohya", seed=1)
    run = comfy_server.run(merging(path.name, 31, "ink \ud83c").prompt, expect="error", timeout=60)
    assert "is no name that a file can have" in run.error
    # The bytes of a name out of an archive of another code page
    odd = Path(os.fsdecode(os.fsencode(path.parent) + b"/hostile\xff.safetensors"))
    odd.write_bytes(path.read_bytes())
    try:
        run = comfy_server.run(merging(odd.name, 32, "hostile-name-saved").prompt, timeout=60)
    finally:
        odd.unlink()
    assert "hostile\\udcff.safetensors" in "".join(texts["text"][0] for texts in run.outputs.values())
    assert (comfy_server.loras_path / "hostile-name-saved.safetensors").exists()


def test_a_strength_that_is_no_number_never_reaches_the_model(
    comfy_server: ComfyServer, tiny_models: dict[str, TinyModel]
) -> None:
    model = tiny_models["sd15"]
    path = comfy_server.loras_path / "hostile-strength.safetensors"
    write_lora(path, model, model.pick("attn1"), naming="kohya", seed=2)
    flow = merging(path.name, 33, "hostile-strength-saved", output_strength=float("nan"))
    run = comfy_server.run(flow.prompt, expect="error", timeout=60)
    assert "`output_strength` is nan" in run.error
    assert not (comfy_server.loras_path / "hostile-strength-saved.safetensors").exists()
