"""The estimate of a merge: from headers alone, and within a factor of two of what a merge then takes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lora_alloy.api import estimate, merge
from lora_alloy_testing.small_loras import SDXL, SDXL_PEFT, write_small

ROOT = Path(__file__).resolve().parent.parent.parent
MERGE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("lora_alloy", sys.argv[1])
sys.modules["lora_alloy"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from lora_alloy.cli import main
code = main(sys.argv[2:])
# Not `ru_maxrss`: a child begins with its parent's.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(code)
"""


def test_the_result_is_as_large_as_the_factors_together(tmp_path):
    ink = write_small(tmp_path / "ink.safetensors", rank=8)
    wash = write_small(tmp_path / "wash.safetensors", SDXL_PEFT, rank=4, alpha=None)
    told = estimate([ink, wash])
    assert told.target_count == len(SDXL)  # two namings of the same targets
    assert told.result_bytes == sum(patch.size_bytes for patch in merge([ink, wash]))


def peak_bytes(*words: str) -> int:
    told = [sys.executable, "-c", MERGE, str(ROOT / "__init__.py"), *words]
    return int(subprocess.run(told, capture_output=True, text=True, check=True).stdout) * 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is in other units there")
@pytest.mark.parametrize("count", [0, 60])
def test_the_peak_is_within_a_factor_of_two(tmp_path, count):
    """`count` targets of SDXL's wide feed-forward in three files; 0 for the small ones."""
    files = []
    for number in range(3):
        path = tmp_path / f"{number}.safetensors"
        block = "lora_unet_middle_block_1_transformer_blocks"
        names = [f"{block}_{n % 10}_ff_net_0_proj{n // 10}" for n in range(count)]
        tensors = {}
        for name in names:
            tensors[f"{name}.lora_up.weight"] = torch.full((10240, 32), 0.01).half()
            tensors[f"{name}.lora_down.weight"] = torch.full((32, 1280), 0.01).half()
        save_file(tensors, path) if tensors else write_small(path)
        files.append(path)
    told = estimate(files)
    plain = ("--quiet", "--preset", "plain")
    peak = peak_bytes("merge", *map(str, files), "-o", str(tmp_path / "out"), *plain)
    assert 0.5 < told.peak_bytes / peak < 2.0, f"{told.peak_bytes:,} told, {peak:,} found"
