"""Merge an SDXL-sized stack in fresh processes, ours beside a dense reference, and print both and the ratio.

    python benchmarks/optimize/run.py [--svd randomised|full] [--every 13] [--repeat 3] [--folder DIR]

Ours is the whole command, `lora-alloy merge`, from process start to the proven file. The reference does every
EVERY-th target with the same start-up; its time without start-up is scaled up to all targets. Ten kinds of
targets follow each other in a block, so EVERY should share no factor with ten. CPU seconds are
user plus system time of the child, its peak memory is the kernel's.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from files import TARGETS, write_stack

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (
    "import importlib.util, sys;"
    "spec = importlib.util.spec_from_file_location('lora_alloy', sys.argv[1]);"
    "sys.modules['lora_alloy'] = module = importlib.util.module_from_spec(spec);"
    "spec.loader.exec_module(module);"
    "from lora_alloy.cli import main; sys.exit(main(sys.argv[2:]))"
)


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    peak_mib: float


def cost(*arguments: str) -> Cost:
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{arguments[0]} ended with {child.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def best(runs: list[Cost]) -> Cost:
    return Cost(min(run.cpu_seconds for run in runs), min(run.peak_mib for run in runs))


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
    dense = str(Path(__file__).with_name("dense.py"))
    ours, reference = [], []
    for _ in range(asked.repeat):
        merge = ("-c", COMMAND, str(ROOT / "__init__.py"), "merge", *files, "-o", out, "--quiet", "--force")
        ours.append(cost(*merge))
        reference.append(cost(dense, out, asked.svd, str(asked.every), *files))
    start = best([cost("-c", "import torch, safetensors.torch") for _ in range(asked.repeat)])
    mine, theirs = best(ours), best(reference)
    whole = start.cpu_seconds + (theirs.cpu_seconds - start.cpu_seconds) * asked.every
    print(f"{TARGETS} targets, 3 LoRAs of ranks 32, 32 and 16, best of {asked.repeat}")
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
