"""What a fresh process costs: CPU seconds, user and system, and its peak memory as the kernel counts it."""

import importlib.util
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
COMMAND = (
    "import importlib.util, sys;"
    "spec = importlib.util.spec_from_file_location('lora_alloy', sys.argv[1]);"
    "sys.modules['lora_alloy'] = module = importlib.util.module_from_spec(spec);"
    "spec.loader.exec_module(module);"
    "from lora_alloy.cli import main; sys.exit(main(sys.argv[2:]))"
)
START = "import torch, safetensors.torch"


@dataclass(frozen=True)
class Cost:
    cpu_seconds: float
    peak_mib: float

    def without(self, start: "Cost") -> "Cost":
        return Cost(self.cpu_seconds - start.cpu_seconds, self.peak_mib - start.peak_mib)


def cost(*arguments: str) -> Cost:
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{arguments[0]} ended with {child.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, peak_mib(usage))


def peak_mib(usage: resource.struct_rusage) -> float:
    """Linux counts KiB, macOS bytes."""
    return usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)


def best(runs: Sequence[Cost]) -> Cost:
    return Cost(min(run.cpu_seconds for run in runs), min(run.peak_mib for run in runs))


def command(*words: str) -> tuple[str, ...]:
    """The arguments of Python that run `lora-alloy` from this clone."""
    return ("-c", COMMAND, str(ROOT / "__init__.py"), *words)


def load_package() -> None:
    spec = importlib.util.spec_from_file_location("lora_alloy", ROOT / "__init__.py")
    assert spec is not None and spec.loader is not None
    sys.modules["lora_alloy"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def load_average() -> str:
    """How busy the machine is, to stand beside every number."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
