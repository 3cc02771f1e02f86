"""A script: a weight that two LoRAs widen, patched by ComfyUI's own loader and by our adapters.

Run as `python -m lora_alloy_testing.widen_in_comfyui TREE LORA BASE OUT`: `TREE` is a ComfyUI checkout, `BASE` holds
`diffusion_model.img_in.weight`. `OUT` gets `theirs` and `ours`, what it is at strength 1 with the LoRA as ComfyUI
reads it, and with our merge of it handed over as our nodes do.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

KEY = "diffusion_model.img_in.weight"


def main(tree: Path, file: Path, base: Path, out: Path) -> None:
    """Patch the weight both ways and write what it is then."""
    sys.path.insert(0, str(tree))
    sys.argv = ["main.py", "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    lora: Any = importlib.import_module("comfy.lora")
    convert: Any = importlib.import_module("comfy.lora_convert")
    place = Path(__file__).resolve().parents[2] / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest", place)
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    from lora_alloy.api import merge
    from lora_alloy.merging.recipe import Recipe
    from lora_alloy.nodes import bridge

    weight = load_file(base)[KEY]
    read = lora.load_lora(convert.convert_lora(load_file(file)), {KEY.removesuffix(".weight"): KEY})
    merged = merge([str(file)], Recipe(method="weighted_sum", auto_strength=False, partial=True))
    ours = bridge.adapters(merged.patches, merged.stack.wider)
    found = {}
    with torch.inference_mode():
        for name, patch in (("theirs", read[KEY]), ("ours", ours[KEY])):
            found[name] = lora.calculate_weight(
                [(1.0, patch, 1.0, None, None)], weight.clone(), KEY
            ).contiguous()
    save_file(found, out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]))
