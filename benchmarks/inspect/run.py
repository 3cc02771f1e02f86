"""Inspect ten files of 287 MB, and print the CPU time, the bytes that were read, and the whole command's CPU time.

    python benchmarks/inspect/run.py [--folder DIR]

The files are SDXL LoRAs of rank 64 with 600 targets and 1800 tensors each; they are sparse where the disk knows
that. Bytes are what the kernel counts as read by this process (`/proc/self/io`, on Linux only).
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "optimize"))
COUNT, RANK = 10, 64
COMMAND = (
    "import importlib.util, sys;"
    "spec = importlib.util.spec_from_file_location('lora_alloy', sys.argv[1]);"
    "sys.modules['lora_alloy'] = module = importlib.util.module_from_spec(spec);"
    "spec.loader.exec_module(module);"
    "from lora_alloy.cli import main; sys.exit(main(sys.argv[2:]))"
)


def package() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lora_alloy", ROOT / "__init__.py")
    assert spec is not None and spec.loader is not None
    sys.modules["lora_alloy"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_files(folder: Path) -> list[str]:
    from files import modules
    from safetensors.torch import save_file

    paths = [folder / f"inspected-{number}.safetensors" for number in range(COUNT)]
    for path in paths:
        if path.exists():
            continue
        tensors = {}
        for name, (out, inner) in modules().items():
            tensors[f"{name}.lora_up.weight"] = torch.zeros(out, RANK, dtype=torch.float16)
            tensors[f"{name}.lora_down.weight"] = torch.zeros(RANK, inner, dtype=torch.float16)
            tensors[f"{name}.alpha"] = torch.tensor(32.0).half()
        save_file(tensors, path)
    return [str(path) for path in paths]


def read_bytes() -> int:
    counters = Path("/proc/self/io")
    return int(counters.read_text().split()[1]) if counters.exists() else 0


def command_seconds(*words: str) -> float:
    child = subprocess.Popen([sys.executable, "-c", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"the command ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "lora-alloy-benchmark")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    files = write_files(folder)
    inspect = package().inspect
    total = sum(Path(path).stat().st_size for path in files)
    before, started = read_bytes(), time.process_time()
    inspect(files)
    seconds, read = time.process_time() - started, read_bytes() - before
    print(f"{COUNT} files, {total / 1e9:.2f} GB in all")
    print(f"inspection alone        {seconds:6.2f} CPU s, the first in its process")
    print(f"bytes read              {read / 1e6:6.2f} MB, {read / total:.2%} of them")
    print(f"import torch alone      {command_seconds('import torch'):6.2f} CPU s")
    print(
        f"lora-alloy inspect      {command_seconds(COMMAND, str(ROOT / '__init__.py'), 'inspect', *files):6.2f} CPU s"
    )


if __name__ == "__main__":
    main()
