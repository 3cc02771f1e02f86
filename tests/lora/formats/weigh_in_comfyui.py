"""A script: what ComfyUI's own loader makes of base weights and LoRA files, as a safetensors file.

Run as `python weigh_in_comfyui.py TREE IN OUT` with `TREE` a ComfyUI checkout. `IN` holds `base N` and, under
`file N NAME`, the tensors of case N, whose module is called as its `module` in the metadata; `OUT` gets `weight N`
for every case that ComfyUI reads. It is a process of its own because two versions of ComfyUI do not fit in one.
"""

import importlib
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def main(tree: Path, given: Path, out: Path) -> None:
    """Import ComfyUI from `tree`, patch every base weight at strength 1, and write what came of it."""
    sys.path.insert(0, str(tree))
    sys.argv = ["main.py", "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    lora = importlib.import_module("comfy.lora")
    files: dict[str, dict[str, torch.Tensor]] = {}
    bases: dict[str, torch.Tensor] = {}
    with safe_open(given, "pt") as opened:
        modules = opened.metadata()
        for key in opened.keys():
            kind, number, *name = key.split(" ", 2)
            if kind == "base":
                bases[number] = opened.get_tensor(key)
            else:
                files.setdefault(number, {})[name[0]] = opened.get_tensor(key)
    found = {}
    for number, base in bases.items():
        patches = lora.load_lora(files[number], {modules[number]: "block.weight"}, log_missing=False)
        for patch in patches.values():
            listed = [(1.0, patch, 1.0, None, None)]
            found[f"weight {number}"] = lora.calculate_weight(listed, base.clone(), "block.weight")
    save_file(found, out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
