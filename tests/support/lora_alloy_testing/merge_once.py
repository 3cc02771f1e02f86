"""Merge and save in a process of its own: `python merge_once.py THREADS FOLDER METHOD:RANK… -- ENTRY…`."""

import importlib.util
import sys
from pathlib import Path

import torch


def main(threads: int, folder: Path, recipes: list[str], entries: list[str]) -> None:
    """Save one file for each recipe, called `METHOD-RANK.safetensors`."""
    torch.set_num_threads(threads)
    # The tests' own way to name the checkout.
    place = Path(__file__).resolve().parents[2] / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest", place)
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    from lora_alloy.api import merge
    from lora_alloy.merging.recipe import Recipe

    for recipe in recipes:
        method, rank = recipe.split(":")
        merge(entries, Recipe(method=method, rank=int(rank))).save(folder / f"{method}-{rank}")


if __name__ == "__main__":
    middle = sys.argv.index("--")
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:middle], sys.argv[middle + 1 :])
