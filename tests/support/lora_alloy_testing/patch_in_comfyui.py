"""A script: what ComfyUI adds to weights for the modules of a file, one tensor a module.

Run as `python -m lora_alloy_testing.patch_in_comfyui TREE LORA BASE OUT STRENGTH`: `TREE` is a ComfyUI checkout,
`BASE` holds `MODULE.weight` (and `MODULE.bias`) for every module `MODULE` of `LORA`, and `OUT` gets what they
gain, under the same names, from ComfyUI's own reader and its own arithmetic. What it does not read is not in
`OUT`. It is a process of its own because two versions of ComfyUI do not fit in one.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def main(tree: Path, lora: Path, base: Path, out: Path, strength: float) -> None:
    """Patch every weight of `base` that `lora` changes, and write the differences to `out`."""
    sys.path.insert(0, str(tree))
    sys.argv = ["main.py", "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    comfy: Any = importlib.import_module("comfy.lora")
    weights = load_file(base)
    names = {key.removesuffix(".weight"): key for key in weights if key.endswith(".weight")}
    gained = {}
    with torch.inference_mode():
        patches = comfy.load_lora(load_file(lora), names, log_missing=False)
        for key, patch in patches.items():
            if key not in weights:
                continue
            weight = weights[key].clone()
            patched = comfy.calculate_weight([(strength, patch, 1.0, None, None)], weight, key)
            gained[key] = (patched.double() - weights[key].double()).contiguous()
    save_file(gained, out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]), float(sys.argv[5]))
