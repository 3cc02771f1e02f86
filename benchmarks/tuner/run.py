"""Tune an SDXL-sized stack in fresh processes, ours beside a dense sweep, and print both and the ratio.

    python benchmarks/tuner/run.py [--every 7] [--repeat 1] [--folder DIR]

Three LoRAs of ranks 32, 32 and 16. First 120 targets with a sweep of three merged candidates, both sides without the
time that importing takes; the dense side merges three candidates and predicts nothing, so all of our prediction is
extra. Then phase 1 alone over the whole grid for 600 targets, and the peak memory for two and for eight merged
candidates. CPU seconds are user plus system time of the child.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "optimize"))

import files  # noqa: E402

START = """
import importlib.util, resource, sys, time
spec = importlib.util.spec_from_file_location("lora_alloy", sys.argv[1])
sys.modules["lora_alloy"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from lora_alloy.api import stack_of
from lora_alloy.autotuner.search import tuned
from lora_alloy.merging.recipe import Recipe
from lora_alloy import tuning
began = time.process_time()
found = tuned(stack_of(sys.argv[3:]), Recipe(), top_n=int(sys.argv[2]))
phases = " ".join(f"{seconds:.3f}" for seconds in found.cpu_seconds.values())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(time.process_time() - began, peak, found.tried, len(found.ranked), phases)
"""


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    peak_mib: float
    tried: int
    different: int
    phases: tuple[float, ...]


def ours(top_n: int, paths: list[Path]) -> Cost:
    words = [sys.executable, "-c", START, str(ROOT / "__init__.py"), str(top_n), *map(str, paths)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return Cost(float(told[0]), float(told[1]), int(told[2]), int(told[3]), tuple(map(float, told[4:])))


def child(*words: str) -> float:
    process = subprocess.Popen([sys.executable, *words])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{words[0]} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def written(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files.TARGETS = count
    return files.write_stack(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=7, help="the dense side does one target in so many")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "lora-alloy-benchmark")
    asked = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}")
    few = written(asked.folder / "120", 120)
    dense = str(Path(__file__).with_name("dense.py"))
    mine, theirs = [], []
    for _ in range(asked.repeat):
        mine.append(ours(3, few).cpu_seconds)
        start = child("-c", "import torch, safetensors")
        theirs.append((child(dense, "120", str(asked.every), *map(str, few)) - start) * asked.every)
    one, other = min(mine), min(theirs)
    print(
        f"120 targets, three candidates merged: ours {one:.2f} CPU s, dense {other:.1f} CPU s: {other / one:.1f}×"
    )
    whole = written(asked.folder, 600)
    two, eight = ours(2, whole), ours(8, whole)
    first = sum(two.phases[:2])
    print(
        f"600 targets, {two.tried} recipes, {two.different} different: phase 1 {first:.1f} CPU s, of them"
        f" {two.phases[0]:.1f} to measure; the whole sweep {two.cpu_seconds:.1f}"
    )
    print(f"peak with 2 merged candidates {two.peak_mib:.0f} MiB, with 8 {eight.peak_mib:.0f} MiB")


if __name__ == "__main__":
    main()
