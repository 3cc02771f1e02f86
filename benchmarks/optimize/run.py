"""Merge an SDXL-sized stack in fresh processes, ours beside a dense reference, and print both and the ratio.

    python benchmarks/optimize/run.py [--svd randomised|full] [--every 13] [--repeat 3] [--folder DIR]

Ours is the whole command, `lora-alloy merge`, from process start to the proven file. The reference does every
EVERY-th target with the same start-up; its time without start-up is scaled up to all targets. Ten kinds of
targets follow each other in a block, so EVERY should share no factor with ten. CPU seconds are
user plus system time of the child, its peak memory is the kernel's.
"""

import argparse
import tempfile
from pathlib import Path

from costs import HERE, START, best, command, cost, load_average
from files import TARGETS, write_stack


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--svd", choices=("randomised", "full"), default="randomised")
    parser.add_argument("--every", type=int, default=13)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "lora-alloy-benchmark")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    files = [str(path) for path in write_stack(asked.folder)]
    out = str(asked.folder / "merged.safetensors")
    dense = str(HERE / "dense.py")
    ours, reference = [], []
    for _ in range(asked.repeat):
        ours.append(cost(*command("merge", *files, "-o", out, "--quiet", "--force")))
        reference.append(cost(dense, out, asked.svd, str(asked.every), *files))
    start = best([cost("-c", START) for _ in range(asked.repeat)])
    mine, theirs = best(ours), best(reference)
    whole = start.cpu_seconds + (theirs.cpu_seconds - start.cpu_seconds) * asked.every
    print(f"{TARGETS} targets, 3 LoRAs of ranks 32, 32 and 16, best of {asked.repeat}, {load_average()}")
    print(f"{'':34}CPU s    peak MiB")
    print(f"{'import torch alone':28}{start.cpu_seconds:11.2f}{start.peak_mib:12.0f}")
    print(f"{'lora-alloy merge, whole':28}{mine.cpu_seconds:11.2f}{mine.peak_mib:12.0f}")
    print(
        f"{f'dense, {asked.svd} SVD, scaled up':28}{whole:11.2f}{theirs.peak_mib:12.0f} for 1 in"
        f" {asked.every}"
    )
    print(f"ratio of CPU time, dense to ours: {whole / mine.cpu_seconds:.1f}")


if __name__ == "__main__":
    main()
