"""What one element-wise merge of all targets costs beside the dense way: a child of `stack.py`.

    python benchmarks/optimize/elementwise.py METHOD EVERY FILE...

The dense way on every EVERY-th target: PEFT's TIES at density 0.5, or consensus as its formula reads, with a
decomposition of the whole matrix. Results are held in half precision, as a merge that is saved must hold them.
"""

import sys

import torch
from safetensors import safe_open
from torch import Tensor


def main(method: str, every: int, files: list[str]) -> None:
    torch.set_num_threads(1)
    opened = [safe_open(file, "pt") for file in files]
    names = [name.removesuffix(".alpha") for name in opened[0].keys() if name.endswith(".alpha")]
    merged = []
    for name in names[::every]:
        deltas = []
        for file in opened:
            down = file.get_tensor(f"{name}.lora_down.weight").float()
            up = file.get_tensor(f"{name}.lora_up.weight").float()
            deltas.append(up @ down * (float(file.get_tensor(f"{name}.alpha")) / down.shape[0]))
        merged.append((ties if method == "ties" else consensus)(deltas).half())


def ties(deltas: list[Tensor]) -> Tensor:
    from peft.utils.merge_utils import ties as peft_ties

    return peft_ties(deltas, torch.ones(len(deltas)), 0.5, "frequency")


def consensus(deltas: list[Tensor]) -> Tensor:
    stacked = torch.stack(deltas)
    merged = (stacked**3).sum(0) / (stacked**2).sum(0).clamp(min=1e-30)
    merged *= stacked.flatten(1).norm(dim=1).mean() / merged.norm()
    left, values, right = torch.linalg.svd(merged, full_matrices=False)
    shares = values / values.sum()
    rank = max(1, round(float(torch.exp(-torch.special.xlogy(shares, shares).sum()))))
    return left[:, :rank] * values[:rank] @ right[:rank]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
