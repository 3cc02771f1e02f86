"""Time what element-wise merging stands on, on one thread, each beside what torch has for it, and print the ratios.

    python benchmarks/elements/run.py [--rows 3072] [--columns 12288] [--repeat 5]

The delta is of rank 32, and is read in tiles of 64 rows; torch gets it whole. Thresholds keep half of it.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
TILE = 64


def best(run: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest of some runs, after one that does not count."""
    run()
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def load_package() -> None:
    spec = importlib.util.spec_from_file_location("lora_alloy", ROOT / "__init__.py")
    assert spec is not None and spec.loader is not None
    sys.modules["lora_alloy"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3072)
    parser.add_argument("--columns", type=int, default=12288)
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    load_package()
    from lora_alloy.core.quantile import magnitude_thresholds
    from lora_alloy.core.rng import uniform
    from lora_alloy.sparsify import della

    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(0)
    up = torch.randn(asked.rows, 32, generator=chance)
    delta = up @ torch.randn(32, asked.columns, generator=chance)
    count, tile = delta.numel(), delta[:TILE].clone()
    keep = count // 2

    def drawn() -> torch.Tensor:
        return uniform((len(tile), asked.columns), seed=0, content="file", target="target", start=0)

    ours = best(
        lambda: magnitude_thresholds(lambda: iter(delta[None].split(TILE, 1)), count, keep), asked.repeat
    )
    kth = best(lambda: delta.abs().flatten().kthvalue(count - keep + 1), min(asked.repeat, 2))
    top = best(lambda: delta.abs().flatten().topk(keep), 1)
    numbers = best(drawn, asked.repeat)
    stream = best(lambda: torch.rand(tile.shape, generator=chance), asked.repeat)
    chances = drawn()
    pruned = best(lambda: della.sparsify(tile, density=0.7, uniform=chances), asked.repeat)
    sort = best(lambda: tile.abs().sort(dim=1, stable=True), asked.repeat)
    print(f"threshold of {asked.rows}x{asked.columns}: {ours:.3f} s")
    print(
        f"    torch.kthvalue {kth:.2f} s, ratio {kth / ours:.1f}; torch.topk {top:.2f} s, ratio {top / ours:.1f}"
    )
    rate = tile.numel() / 1e6
    print(f"numbers by place: {rate / numbers:.0f} M/s; torch.rand {rate / stream:.0f} M/s")
    print(f"DELLA: {rate / pruned:.1f} M/s; a stable torch.sort of the rows alone {rate / sort:.1f} M/s")


if __name__ == "__main__":
    main()
