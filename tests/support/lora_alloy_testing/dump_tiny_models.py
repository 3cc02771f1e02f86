"""A script: write what ComfyUI knows of each tiny model, its weights' shapes and its own key map, as JSON.

Run as `python -m lora_alloy_testing.dump_tiny_models TREE OUT` with `TREE` a ComfyUI checkout. It is a
process of its own: ComfyUI reads `sys.argv` on import, and two versions do not fit in one process.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

_Names = dict[str, tuple[str, list[int] | None, bool]]


def _read_component(
    prefix: str, state: dict[str, Any], key_map: dict[str, Any]
) -> tuple[dict[str, list[int]], _Names]:
    """Shapes by weight, and `{name: (weight, part, swap_halves)}`, of one key map whose target exists."""
    weights = {key: prefix + key.removesuffix(".weight") for key in sorted(state) if key.endswith(".weight")}
    names: _Names = {}
    for name, target in sorted(key_map.items()):
        key, part, function = (target, None, None) if isinstance(target, str) else (*target, None)[:3]
        if key in weights:
            names[name] = (weights[key], list(part) if part else None, function is not None)
    return {weight: list(state[key].shape) for key, weight in weights.items()}, names


def _read_family(models: Any, family: str) -> dict[str, object]:
    lora: Any = importlib.import_module("comfy.lora")
    patcher, clip = models.build(family, seed=0)
    model, encoders = patcher.model, clip.cond_stage_model
    shapes, names = _read_component("", model.state_dict(), lora.model_lora_keys_unet(model, {}))
    text_map = lora.model_lora_keys_clip(encoders, {})
    text_shapes, text_names = _read_component("text_encoders.", encoders.state_dict(), text_map)
    return {"weights": shapes | text_shapes, "names": names | text_names}


def main(tree: Path, out: Path) -> None:
    """Import ComfyUI from `tree`, build each tiny model, and write `{family: {weights, names}}` to `out`."""
    sys.path.insert(0, str(tree))
    sys.argv = ["main.py", "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    with torch.inference_mode():
        models: Any = importlib.import_module(".test_pack.models", __package__)
        found = {family: _read_family(models, family) for family in models.FAMILIES}
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
