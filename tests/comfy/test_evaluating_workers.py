"""Candidates of a sweep judged through the queue of a real ComfyUI."""

import json
from pathlib import Path

import pytest

from lora_alloy import tune
from lora_alloy.autotuner.comfy_queue import ComfyQueue
from lora_alloy.autotuner.workers import ComfyWorkers
from lora_alloy.autotuner.workflow import Workflow as Scoring
from lora_alloy_testing.comfy_server import ComfyServer
from lora_alloy_testing.lora_files import write_lora
from lora_alloy_testing.sweeps import shorten
from lora_alloy_testing.tiny_models import TinyModel
from lora_alloy_testing.workflow import Workflow

pytestmark = pytest.mark.comfy


@pytest.fixture
def loras(tmp_path: Path, tiny_models: dict[str, TinyModel]) -> list[str]:
    model = tiny_models["sd15"]
    return [
        str(
            write_lora(
                tmp_path / f"{seed}.safetensors", model, model.pick("attn1"), naming="kohya", seed=seed
            ).path
        )
        for seed in (1, 2)
    ]


def scoring(answer: str) -> Scoring:
    """Loads the candidate onto a tiny model, as ComfyUI does, and shows `answer` for a score."""
    flow = Workflow()
    tiny = flow.add("AlloyTestModel", family="sd15", seed=21)
    loaded = flow.add("LoraLoaderModelOnly", model=tiny[0], lora_name="{lora}", strength_model=1.0)
    flow.add("AlloyTestWeights", model=loaded[0], clip=tiny[1], name="judged")
    text = flow.add("PrimitiveString", value=answer)
    shown = flow.add("PreviewAny", source=text[0])
    return Scoring.of(json.loads(json.dumps(flow.prompt)), shown.id)


def test_every_candidate_is_loaded_by_the_server_and_its_score_read(
    comfy_server: ComfyServer, loras: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch)
    before = set(comfy_server.loras_path.iterdir())
    queue = ComfyQueue(comfy_server.address, interval=0.2, timeout=120)
    with ComfyWorkers(
        [queue], scoring('{"score": 0.75, "details": ["seen"]}'), comfy_server.loras_path
    ) as evaluate:
        found = tune(loras, top_n=2, evaluate=evaluate)
    verdicts = [one.verdict for one in found.ranked[:2]]
    assert [one and (one.external, one.details) for one in verdicts] == [(0.75, ["seen"])] * 2, verdicts
    assert set(comfy_server.loras_path.iterdir()) == before
    # The last one that was judged is what the server's model had on it.
    deltas = comfy_server.weights("judged").deltas()
    assert any(abs(delta).max() > 0 for delta in deltas.values())


def test_what_the_server_refuses_is_told(
    comfy_server: ComfyServer, loras: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shorten(monkeypatch)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    queue = ComfyQueue(comfy_server.address, interval=0.2, timeout=120)
    with ComfyWorkers([queue], scoring("0.5"), elsewhere) as evaluate:
        found = tune(loras, top_n=1, evaluate=evaluate)
    verdict = found.ranked[0].verdict
    assert (
        verdict is not None
        and "refused a part of the prompt" in verdict.error
        and "lora_name" in verdict.error
    )
