"""ComfyUI is asked to make room on its device, by its own function."""

import sys
from types import ModuleType

import pytest
import torch

from lora_alloy.nodes import bridge


def test_comfyui_frees_as_much_as_the_merge_needs_on_the_device_it_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, torch.device]] = []
    comfy, management = ModuleType("comfy"), ModuleType("comfy.model_management")

    def free_memory(
        memory_required: int, device: torch.device, keep_loaded: tuple[object, ...] = ()
    ) -> list[object]:
        asked.append((memory_required, device))
        return ["a model that was unloaded"]

    management.free_memory = free_memory  # type: ignore[attr-defined]
    comfy.model_management = management  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comfy", comfy)
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    bridge.make_room(torch.device("cuda", 1))(12_345)
    assert asked == [(12_345, torch.device("cuda", 1))]
