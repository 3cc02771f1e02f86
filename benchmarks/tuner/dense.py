"""A sweep the dense way, as a reference: every candidate multiplies every delta out again, merges, and is measured.

    python benchmarks/tuner/dense.py TARGETS EVERY FILE...

Three candidates, an average, TIES and SLERP, each behind one analysis, as optimizers that work on whole matrices do it.
Only every EVERY-th target is done; the caller scales up.
"""

import sys
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "optimize"))

from dense import measure


def deltas_of(opened: list, name: str) -> list[Tensor]:
    found = []
    for file in opened:
        down = file.get_tensor(f"{name}.lora_down.weight").float()
        up = file.get_tensor(f"{name}.lora_up.weight").float()
        found.append(up @ down * (float(file.get_tensor(f"{name}.alpha")) / down.shape[0]))
    return found


def average(deltas: list[Tensor]) -> Tensor:
    return sum(deltas[1:], deltas[0]) / len(deltas)


def slerp(deltas: list[Tensor]) -> Tensor:
    merged, norms = deltas[0], [float(delta.norm()) for delta in deltas]
    for count, delta in enumerate(deltas[1:], 2):
        cosine = (merged * delta).sum() / (merged.norm() * delta.norm())
        angle, share = torch.arccos(cosine.clamp(-1, 1)), 1 / count
        merged = (torch.sin((1 - share) * angle) * merged + torch.sin(share * angle) * delta) / torch.sin(
            angle
        )
    return merged * (sum(norms) / len(norms) / float(merged.norm()))


def ties(deltas: list[Tensor]) -> Tensor:
    kept = []
    for delta in deltas:
        limit = delta.abs().flatten().kthvalue(delta.numel() // 2).values
        kept.append(torch.where(delta.abs() > limit, delta, 0.0))
    stacked = torch.stack(kept)
    agree = torch.sign(stacked) == torch.sign(stacked.sum(0))
    return (stacked * agree).sum(0) / agree.sum(0).clamp(min=1)


def scored(merged: Tensor) -> tuple[float, float]:
    size = merged.abs()
    return float(merged.norm()), float((size < 0.01 * size.max()).float().mean())


def main(targets: int, every: int, files: list[str]) -> None:
    opened = [safe_open(file, "pt") for file in files]
    names = [name.removesuffix(".alpha") for name in opened[0].keys() if name.endswith(".alpha")][:targets]
    for name in names[::every]:
        measure(deltas_of(opened, name))
    for merge in (average, ties, slerp):
        for name in names[::every]:
            scored(merge(deltas_of(opened, name)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
