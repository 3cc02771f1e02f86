"""What each method and each step costs: CPU milliseconds for one weight, three LoRAs, as a Markdown table.

    python benchmarks/methods/run.py [--size 1280] [--rank 16] [--targets 4] [--repeat 3]

CPU time of this process on one thread, of the whole merge without reading and saving; the best of the repeats.
"""

import argparse
import importlib.util
import sys
from pathlib import Path
from time import process_time

import torch

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, usual in (("size", 1280), ("rank", 16), ("targets", 4), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    spec = importlib.util.spec_from_file_location("lora_alloy", ROOT / "__init__.py")
    assert spec and spec.loader
    sys.modules["lora_alloy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["lora_alloy"])
    from lora_alloy import Recipe, merge
    from lora_alloy.lora.file import lora_in_memory
    from lora_alloy.merging.methods import METHODS
    from lora_alloy.merging.recipe import REFINEMENTS
    from lora_alloy.sparsify import SPARSIFIERS

    torch.set_num_threads(1)
    stack = []
    for seed in range(3):
        chance = torch.Generator().manual_seed(seed)
        tensors = {}
        for place in range(asked.targets):
            name = f"blocks.{place}.proj"
            tensors[f"{name}.lora_up.weight"] = torch.randn(asked.size, asked.rank, generator=chance)
            tensors[f"{name}.lora_down.weight"] = torch.randn(asked.rank, asked.size, generator=chance)
        stack.append(lora_in_memory(f"lora {seed}", tensors, {}))
    recipes = {"default": Recipe()} | {name: Recipe(method=name) for name in METHODS}
    recipes |= {
        f"{name} + weighted_sum": Recipe(method="weighted_sum", sparsify=name) for name in SPARSIFIERS
    }
    recipes |= {f"{name} + ties": Recipe(method="ties", enhance=name) for name in REFINEMENTS["full"]}
    recipes["star_eta 90 + default"] = Recipe(star_eta=90.0)
    print("| recipe | ms |\n| --- | ---: |")
    for name, recipe in recipes.items():
        spent = []
        for _ in range(asked.repeat):
            started = process_time()
            merge(stack, recipe)
            spent.append(process_time() - started)
        print(f"| {name} | {1000 * min(spent) / asked.targets:.0f} |", flush=True)


if __name__ == "__main__":
    main()
