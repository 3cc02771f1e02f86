"""The dense way, as a reference: materialise every delta, measure, average, decompose, save.

    python benchmarks/optimize/dense.py OUT SVD EVERY FILE...

It does what optimizers that work on whole matrices do for one merge: norms, dot products and sign conflicts
of all pairs on the dense deltas, the weighted average, and a decomposition at the sum of the ranks,
`randomised` or `full`. Only every EVERY-th target is done; the caller scales up.
"""

import sys
from itertools import combinations

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor


def main(out: str, svd: str, every: int, files: list[str]) -> None:
    opened = [safe_open(file, "pt") for file in files]
    names = [name.removesuffix(".alpha") for name in opened[0].keys() if name.endswith(".alpha")]
    merged: dict[str, Tensor] = {}
    for name in names[::every]:
        deltas, rank = [], 0
        for file in opened:
            down = file.get_tensor(f"{name}.lora_down.weight").float()
            up = file.get_tensor(f"{name}.lora_up.weight").float()
            deltas.append(up @ down * (float(file.get_tensor(f"{name}.alpha")) / down.shape[0]))
            rank += down.shape[0]
        measure(deltas)
        up, down = decompose(sum(deltas) / len(deltas), rank, svd)
        merged[f"{name}.lora_up.weight"] = up.half().contiguous()
        merged[f"{name}.lora_down.weight"] = down.half().contiguous()
        merged[f"{name}.alpha"] = torch.tensor(float(rank))
    save_file(merged, out)


def measure(deltas: list[Tensor]) -> list[tuple[float, float]]:
    norms = [float(delta.norm()) for delta in deltas]
    found = []
    for (one, a), (other, b) in combinations(zip(deltas, norms, strict=True), 2):
        cosine = float((one * other).sum()) / (a * b)
        both = (one != 0) & (other != 0)
        found.append((cosine, float(((one * other < 0) & both).sum() / both.sum())))
    return found


def decompose(delta: Tensor, rank: int, svd: str) -> tuple[Tensor, Tensor]:
    if svd == "full":
        left, values, right = torch.linalg.svd(delta, full_matrices=False)
        return left[:, :rank] * values[:rank], right[:rank]
    left, values, right = torch.svd_lowrank(delta, q=rank, niter=2)
    return left * values, right.T


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
