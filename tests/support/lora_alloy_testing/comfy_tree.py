"""Find ComfyUI checkouts to test against, and what they need to run.

`LORA_ALLOY_COMFYUI` names them, separated as in `PATH`; without it, those in `~/.cache/lora-alloy/comfyui-*`
are taken. A checkout is a plain folder with ComfyUI's `main.py`; models, results and settings stay out of it.
"""

import functools
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "LORA_ALLOY_COMFYUI"
CACHE = Path("~/.cache/lora-alloy").expanduser()
STANDIN = Path(__file__).parent / "torchvision_standin"
SUPPORT = Path(__file__).parent.parent

_REQUIRED = (
    *("torch", "numpy", "einops", "safetensors", "aiohttp", "yarl", "yaml", "PIL", "scipy", "tqdm", "psutil"),
    *("torchsde", "transformers", "sentencepiece", "av", "requests", "filelock", "comfyui_frontend_package"),
)
_REQUIRED_SINCE_0_19 = ("pydantic", "sqlalchemy", "comfy_aimdo")


@dataclass(frozen=True)
class ComfyTree:
    """A ComfyUI checkout."""

    path: Path
    version: str

    def missing(self) -> list[str]:
        """The modules this checkout needs and this Python lacks."""
        since = tuple(int(number) for number in re.findall(r"\d+", self.version)[:2]) >= (0, 19)
        required = _REQUIRED + _REQUIRED_SINCE_0_19 * since
        return [name for name in required if importlib.util.find_spec(name) is None]

    def environment(self) -> dict[str, str]:
        """Environment variables for a Python that is to import this checkout and this package."""
        paths = [str(SUPPORT)] if _torchvision_imports() else [str(STANDIN), str(SUPPORT)]
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        # on tensors this small more threads only wait for each other: twice the CPU time on a busy machine
        threads = {"OMP_NUM_THREADS": "1"}
        return threads | os.environ | offline | {"PYTHONPATH": os.pathsep.join(paths)}

    def __str__(self) -> str:
        return self.version


@functools.cache
def _torchvision_imports() -> bool:
    # it may be installed and yet not load: PyPI's does not beside a CPU-only torch
    if importlib.util.find_spec("torchvision") is None:
        return False
    command = [sys.executable, "-c", "import torchvision.transforms"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _read(path: Path) -> ComfyTree:
    """Raises `FileNotFoundError` where `path` is no ComfyUI checkout."""
    if not (path / "main.py").is_file():
        raise FileNotFoundError(
            f"{path}, named by {VARIABLE} or found in {CACHE}, has no main.py of ComfyUI's."
        )
    text = (path / "comfyui_version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.+?)"', text)
    return ComfyTree(path, found[1] if found else "unknown")


def find_trees() -> list[ComfyTree]:
    """The checkouts to test against, oldest version first; empty where there are none."""
    named = os.environ.get(VARIABLE)
    paths = [Path(each) for each in named.split(os.pathsep) if each] if named else CACHE.glob("comfyui-*")
    trees = [_read(path.resolve()) for path in paths]
    return sorted(trees, key=lambda tree: [int(number) for number in re.findall(r"\d+", tree.version)])
