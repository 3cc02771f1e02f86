"""A script: write the key maps that ComfyUI gives the full-size models, as JSON.

Run as `python dump_key_maps.py TREE OUT` with `TREE` a ComfyUI checkout. The models stand on the `meta`
device, without memory. It is a process of its own because two versions of ComfyUI do not fit in one.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch


def _routes(key_map: dict[str, Any], state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """By name, the key, its part `(axis, start, length)` or None, and whether a function is applied."""
    found = {}
    for name, route in key_map.items():
        key, part, function = ((route, None, None) if isinstance(route, str) else (*route, None))[:3]
        if key in state:
            found[name] = (prefix + key, part, function is not None)
    return found


def main(tree: Path, out: Path) -> None:
    """Import ComfyUI from `tree` and write `{family: {name: route}}` to `out`; variants of a family together."""
    sys.path.insert(0, str(tree))
    sys.argv = ["main.py", "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    lora = importlib.import_module("comfy.lora")
    models: Any = importlib.import_module("lora_alloy_testing.comfy_models")
    found: dict[str, dict[str, Any]] = {}
    with torch.inference_mode():
        for family in models.BUILDS:
            for made in models.built(family):
                maps = found.setdefault(family, {})
                maps |= _routes(lora.model_lora_keys_unet(made.model, {}), made.model.state_dict(), "")
                if made.encoders is not None:
                    text = lora.model_lora_keys_clip(made.encoders, {})
                    maps |= _routes(text, made.encoders.state_dict(), "text_encoders.")
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
