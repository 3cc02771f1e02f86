"""Element-wise merges of a whole SDXL-sized stack, ours beside the dense way; print both, the ratios and the memory.

    python benchmarks/optimize/stack.py [--methods ties consensus] [--every 13] [--folder DIR]

Ours is the whole command, from process start to the proven file. The dense way does every EVERY-th target, without
saving anything; its time without start-up is scaled up. The budget of memory is what imports take, 600 MiB and the
result. Takes minutes, and for TIES 4 GB of disk. Needs `peft`.
"""

import argparse
import tempfile
from pathlib import Path

from costs import HERE, START, command, cost, load_average
from files import TARGETS, write_stack

ALLOWED_MIB = 600


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=("ties", "consensus"), default=["ties", "consensus"])
    parser.add_argument("--every", type=int, default=13)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "lora-alloy-benchmark")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    files = [str(path) for path in write_stack(asked.folder)]
    start, peft = cost("-c", START), cost("-c", f"{START}, peft")
    imports = cost(*command("merge", "--help"))
    for method in asked.methods:
        out = asked.folder / f"{method}.safetensors"
        words = ("merge", *files, "-o", str(out), "--method", method, "--quiet", "--force")
        ours = cost(*command(*words))
        result = out.stat().st_size / 2**20
        out.unlink()
        theirs = cost(str(HERE / "elementwise.py"), method, str(asked.every), *files)
        dense_start = peft if method == "ties" else start
        dense = (theirs.cpu_seconds - dense_start.cpu_seconds) * asked.every + start.cpu_seconds
        budget = imports.peak_mib + ALLOWED_MIB + result
        print(f"{method}: {TARGETS} targets, 3 LoRAs, {load_average()}")
        print(f"    ours, whole command   {ours.cpu_seconds:8.1f} CPU s{ours.peak_mib:8.0f} MiB peak")
        print(f"    dense, scaled up      {dense:8.1f} CPU s, ratio {dense / ours.cpu_seconds:.1f}")
        print(
            f"    budget {budget:.0f} MiB = {imports.peak_mib:.0f} imports + {ALLOWED_MIB} + {result:.0f} result;"
            f" {ours.peak_mib / budget:.0%} of it used",
            flush=True,
        )


if __name__ == "__main__":
    main()
