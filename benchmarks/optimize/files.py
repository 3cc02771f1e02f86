"""A stack of the size people merge: three SDXL LoRAs of 600 targets, ranks 32, 32 and 16, half precision."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

RANKS = (32, 32, 16)
TARGETS = 600
# (place in the network, width, transformer blocks): SDXL's attention levels.
_LEVELS = (
    *((f"input_blocks_{number}_1", 640, 2) for number in (4, 5)),
    *((f"input_blocks_{number}_1", 1280, 10) for number in (7, 8)),
    ("middle_block_1", 1280, 10),
    *((f"output_blocks_{number}_1", 1280, 10) for number in (0, 1, 2)),
    *((f"output_blocks_{number}_1", 640, 2) for number in (3, 4, 5)),
)


def modules() -> dict[str, tuple[int, int]]:
    """The names and shapes `(o, i)` of 600 targets, spread evenly over the network's 700."""
    found: dict[str, tuple[int, int]] = {}
    for place, width, depth in _LEVELS:
        for block in range(depth):
            path = f"lora_unet_{place}_transformer_blocks_{block}"
            for attention, context in (("attn1", width), ("attn2", 2048)):
                found[f"{path}_{attention}_to_q"] = (width, width)
                found[f"{path}_{attention}_to_k"] = (width, context)
                found[f"{path}_{attention}_to_v"] = (width, context)
                found[f"{path}_{attention}_to_out_0"] = (width, width)
            found[f"{path}_ff_net_0_proj"] = (8 * width, width)
            found[f"{path}_ff_net_2"] = (width, 4 * width)
    names = list(found)
    return {
        names[at * len(names) // TARGETS]: found[names[at * len(names) // TARGETS]] for at in range(TARGETS)
    }


def write_stack(folder: Path) -> list[Path]:
    """Write the three files, if they are not there yet; deterministic."""
    return write_loras(folder, RANKS, TARGETS)


def write_loras(folder: Path, ranks: Sequence[int], count: int) -> list[Path]:
    """Write a file for each rank, if it is not there yet; of the first targets or all."""
    paths = []
    for number, rank in enumerate(ranks):
        path = folder / f"lora-{number}-r{rank}.safetensors"
        paths.append(path)
        if path.exists():
            continue
        chance = torch.Generator().manual_seed(number)
        tensors: dict[str, torch.Tensor] = {}
        for name, (out, inner) in list(modules().items())[:count]:
            tensors[f"{name}.lora_up.weight"] = (torch.randn(out, rank, generator=chance) * 0.02).half()
            tensors[f"{name}.lora_down.weight"] = (torch.randn(rank, inner, generator=chance) * 0.05).half()
            tensors[f"{name}.alpha"] = torch.tensor(float(rank // 2)).half()
        save_file(tensors, path)
    return paths
