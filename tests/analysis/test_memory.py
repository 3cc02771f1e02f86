"""Memory does not grow with the number of targets: files are read piece by piece."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
PEAK = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("lora_alloy", sys.argv[1])
sys.modules["lora_alloy"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.plan(sys.argv[2:])
# Not `ru_maxrss`: a child begins with its parent's.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak(folder: Path, count: int) -> tuple[int, int]:
    """Bytes of two LoRAs of `count` targets, and the peak of a process that analyses them."""
    paths = []
    for seed in range(2):
        path = folder / f"{count}-{seed}.safetensors"
        factor = torch.randn(640, 32, generator=torch.Generator().manual_seed(seed))
        tensors = {}
        for at in range(count):
            tensors[f"blocks.{at}.q.lora_up.weight"] = factor + at
            tensors[f"blocks.{at}.q.lora_down.weight"] = (factor - at).T.contiguous()
        save_file(tensors, path)
        paths.append(path)
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, str(ROOT / "__init__.py"), *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    return sum(path.stat().st_size for path in paths), int(ran.stdout) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells the peak in /proc")
def test_a_plan_for_eight_times_the_targets_takes_hardly_more_memory(tmp_path: Path) -> None:
    small_bytes, small_peak = peak(tmp_path, 100)
    large_bytes, large_peak = peak(tmp_path, 800)
    assert large_peak - small_peak < 0.25 * (large_bytes - small_bytes)
