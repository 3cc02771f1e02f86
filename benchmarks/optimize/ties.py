"""TIES on one large weight, ours beside PEFT's on dense deltas, each in fresh processes; print both and the ratios.

    python benchmarks/optimize/ties.py [--rows 3072] [--columns 12288] [--loras 3] [--repeat 3]

Both start from the same factors of rank 32, on one thread, at density 0.5 with one vote a LoRA. CPU seconds are those
of the merge alone, without imports and inputs. Memory is the peak above what stood when the factors were there; PEFT's
has its dense deltas in it, which it takes as inputs, and is given a second time without them. The results are
compared in a process of their own. Needs `peft`.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from costs import load_average, load_package, peak_mib

RANK, DENSITY = 32, 0.5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3072)
    parser.add_argument("--columns", type=int, default=12288)
    parser.add_argument("--loras", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--side", choices=("ours", "peft", "both"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        print(json.dumps(run_side(asked)))
        return
    sides = ("ours", "peft")
    runs = {side: [run_child(asked, side) for _ in range(asked.repeat)] for side in sides}
    least = {side: {key: min(run[key] for run in runs[side]) for key in runs[side][0]} for side in sides}
    size = asked.rows * asked.columns * 4 / 2**20
    print(
        f"TIES, {asked.loras} LoRAs, {asked.rows}x{asked.columns}, one thread, best of {asked.repeat},"
        f" {load_average()}; the result alone is {size:.0f} MiB"
    )
    for side in sides:
        print(f"  {side:5}{least[side]['seconds']:8.2f} CPU s{least[side]['mib']:8.0f} MiB peak")
    faster = least["peft"]["seconds"] / least["ours"]["seconds"]
    smaller = least["peft"]["mib"] / least["ours"]["mib"]
    bare = (least["peft"]["mib"] - asked.loras * size) / least["ours"]["mib"]
    print(f"ratios, PEFT to ours: time {faster:.1f}, memory {smaller:.1f}, without PEFT's inputs {bare:.1f}")
    differing = run_child(asked, "both")["differing"]
    print(
        f"entries that differ: {differing:.0f} of {asked.rows * asked.columns}; rounding decides at the threshold"
    )


def run_child(asked: argparse.Namespace, side: str) -> dict[str, float]:
    words = [f"--{name}={getattr(asked, name)}" for name in ("rows", "columns", "loras")]
    done = subprocess.run(
        [sys.executable, __file__, *words, f"--side={side}"], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def run_side(asked: argparse.Namespace) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    merges = {
        side: prepared(side, asked) for side in (("ours", "peft") if asked.side == "both" else (asked.side,))
    }
    before, start = peak_mib(resource.getrusage(resource.RUSAGE_SELF)), time.process_time()
    made = [merge() for merge in merges.values()]
    seconds, after = time.process_time() - start, peak_mib(resource.getrusage(resource.RUSAGE_SELF))
    if len(made) == 2:
        off = (made[0] - made[1]).abs() > 1e-5 * made[1].abs().max()
        return {"differing": float(off.sum())}
    return {"seconds": seconds, "mib": after - before}


def prepared(side: str, asked: argparse.Namespace) -> Any:
    """What merges, with all imports done and the factors made."""
    import torch

    chance = torch.Generator().manual_seed(0)
    shape = (asked.rows, asked.columns)
    factors = [
        (
            torch.randn(shape[0], RANK, generator=chance) * 0.02,
            torch.randn(RANK, shape[1], generator=chance) * 0.05,
        )
        for _ in range(asked.loras)
    ]
    weights = torch.linspace(1.0, 0.5, asked.loras)
    if side == "peft":
        from peft.utils.merge_utils import ties

        return lambda: ties([up @ down for up, down in factors], weights, DENSITY, "frequency")
    load_package()
    from lora_alloy.core.threads import one_thread
    from lora_alloy.lora.factors import LowRank
    from lora_alloy.merging.elements import blended
    from lora_alloy.merging.methods import METHODS
    from lora_alloy.merging.work import Work

    deltas = [LowRank(up, down, 1.0, shape) for up, down in factors]
    settings = {"density": DENSITY, "vote": "frequency", "divisor": "count", "unit": "entry"}
    count = asked.loras
    work = Work(
        tuple(range(count)),
        tuple(weights.tolist()),
        ("",) * count,
        ("all",) * count,
        "trim",
        (),
        1.0,
        1.0,
        0,
        settings,
    )

    def merge() -> torch.Tensor:
        with torch.no_grad(), one_thread():
            return blended(deltas, work, METHODS["ties"], "weight")[0].matrix

    return merge


if __name__ == "__main__":
    main()
