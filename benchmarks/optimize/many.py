"""Thirty LoRAs beside three of them: the peak memory grows by the factors themselves, and by nothing else.

    python benchmarks/optimize/many.py [--loras 30] [--targets 60] [--methods auto ties] [--folder DIR]

Each merge is the whole command in a fresh process, of LoRAs of rank 16 on the same targets. The peaks are printed
above what imports take, with the size of the result, and beside them how much larger the factors of a target are.
"""

import argparse
import tempfile
from pathlib import Path

from costs import command, cost, load_average
from files import write_loras

FEW, RANK = 3, 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loras", type=int, default=30)
    parser.add_argument("--targets", type=int, default=60)
    parser.add_argument("--methods", nargs="+", default=["auto", "ties"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "lora-alloy-benchmark")
    asked = parser.parse_args()
    folder = asked.folder / f"many-{asked.targets}"
    folder.mkdir(parents=True, exist_ok=True)
    files = write_loras(folder, (RANK,) * asked.loras, asked.targets)
    imports = cost(*command("merge", "--help")).peak_mib
    factors = files[0].stat().st_size / 2**20
    print(
        f"{asked.targets} targets, rank {RANK}, {factors:.0f} MiB a file, {load_average()}; MiB above imports"
    )
    for method in asked.methods:
        peaks, sizes = [], []
        for count in (FEW, asked.loras):
            out = folder / "merged.safetensors"
            words = [*map(str, files[:count]), "-o", str(out), "--method", method, "--quiet", "--force"]
            peaks.append(cost(*command("merge", *words)).peak_mib - imports)
            sizes.append(out.stat().st_size / 2**20)
            out.unlink()
        more = (peaks[1] - sizes[1]) - (peaks[0] - sizes[0])
        print(
            f"  {method:14}{FEW} LoRAs {peaks[0]:5.0f} with a result of {sizes[0]:.0f},"
            f" {asked.loras} LoRAs {peaks[1]:5.0f} with {sizes[1]:.0f};"
            f" more without the results {more:+.0f}, files more {factors * (asked.loras - FEW):.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
