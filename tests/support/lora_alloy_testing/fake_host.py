"""What our nodes know of ComfyUI's models, without ComfyUI: owners of weights whose clones remember their patches.

host = FakeHost(monkeypatch)
node.auto_tune(host.model, stack, clip=host.clip)
host.model_of(result).patches       # {target: (delta, strength)}
"""

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch

from .builders import TOY
from lora_alloy.lora.entries import Model
from lora_alloy.lora.target import Route, Target
from lora_alloy.nodes import bridge
from lora_alloy.nodes.lora_auto_tuner import LoRAAutoTuner

__all__ = ["STACK", "FakeHost", "Owner", "StoppedError", "few_candidates", "swept", "tuned"]

STACK = [("ink.safetensors", 1.0, 1.0), ("oil.safetensors", 0.8, 0.5), ("wax.safetensors", 0.6, 0.6)]


class Weights:
    """A base model, as far as its identity goes."""


@dataclass
class Owner:
    """A MODEL or a CLIP; `patches` are by target: a delta and the strength that it is added at."""

    model: Weights
    patches: dict[str, tuple[torch.Tensor, float]] = field(default_factory=dict)

    @property
    def cond_stage_model(self) -> Weights:
        return self.model


class FakeHost:
    """Puts itself in the place of the bridge's knowledge of models.

    Attributes:
        model: MODEL.
        clip: CLIP.
        told: what progress was told, in order.
        stop_at: raise `Stopped` when progress is told of this pass for the `stop_after`-th time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.clip = Owner(Weights()), Owner(Weights())
        self.told: list[tuple[str, int, int]] = []
        self.steps: list[int] = []
        self.stop_at: tuple[str, int] | None = None
        replaced = ("read_model", "progress_bar", "work_device", "make_room", "adapters", "patched")
        for name in (*replaced, "interruptions"):
            monkeypatch.setattr(bridge, name, getattr(self, name))

    def read_model(self, model: Any, clip: Any | None) -> Model:
        known = {name: Route(Target(target)) for name, (target, _) in TOY.items()}
        return Model(known, dict(TOY.values()), clip is not None)

    def progress_bar(self, steps: int) -> Any:
        self.steps.append(steps)

        def tell(what: str, done: int, total: int) -> None:
            self.told.append((what, done, total))
            if self.stop_at and [one[0] for one in self.told].count(self.stop_at[0]) >= self.stop_at[1]:
                raise StoppedError(what)

        return tell

    def work_device(self, on_gpu: bool) -> torch.device:
        return torch.device("cpu")

    def make_room(self, device: torch.device) -> Any:
        return lambda size: None

    def adapters(self, patches: Any, wider: Any = ()) -> dict[Any, Any]:
        return {str(patch.target): patch.delta for patch in patches}

    def patched(self, owner: Owner, patches: Any, strength: float) -> tuple[Owner, list[str]]:
        made = {name: (delta.flat().clone(), strength) for name, delta in patches.items()}
        return Owner(owner.model, {**owner.patches, **made}), []

    def interruptions(self) -> tuple[type[BaseException], ...]:
        return (StoppedError,)


class StoppedError(Exception):
    """The user cancelled."""


def few_candidates(monkeypatch: pytest.MonkeyPatch, count: int = 40) -> None:
    """Let a sweep try only the first candidates."""
    from lora_alloy.autotuner import search, space

    monkeypatch.setattr(
        search, "candidates", lambda recipe: dict(islice(space.candidates(recipe).items(), count))
    )


def tuned(host: FakeHost, stack: object = STACK, **widgets: Any) -> dict[str, Any]:
    """What the AutoTuner puts out, by name; nothing outlives the process unless `memory_mode` says so."""
    found = LoRAAutoTuner().auto_tune(
        host.model, stack, clip=host.clip, **{"memory_mode": "disabled", **widgets}
    )
    return dict(zip(LoRAAutoTuner.RETURN_NAMES, found, strict=True))


def swept(host: FakeHost) -> bool:
    """Whether something was predicted since this was last asked."""
    was = any(what == "predict" for what, _, _ in host.told)
    host.told.clear()
    return was
