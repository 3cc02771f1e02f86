"""Runs the command line in this process, on small files."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from lora_alloy.cli import main
from lora_alloy_testing.small_loras import SDXL, SDXL_PEFT, SDXL_TEXT, write_small

# Test processes share the cores, and threads that wait for each other there cost ten times their work.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True)
class Ran:
    """What one command did: its exit code, its results, its problems."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def started_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages spell the program as it was started, and the suite may have been by `alloy.py test`."""
    monkeypatch.setattr("sys.argv", ["lora-alloy"])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run one command, given word by word, as the installed program does."""
    # Messages name the program that was started, which for these tests may be our own launcher.
    monkeypatch.setattr(sys, "argv", ["lora-alloy"])

    def run_command(*words: str | Path) -> Ran:
        capsys.readouterr()
        code = main([str(word) for word in words])
        seen = capsys.readouterr()
        return Ran(code, seen.out, seen.err)

    return run_command


@pytest.fixture
def loras(tmp_path: Path) -> list[Path]:
    """Three LoRAs of SDXL: kohya's with a text encoder, PEFT's, kohya's."""
    folder = tmp_path / "loras"
    folder.mkdir()
    return [
        write_small(folder / "ink.safetensors", SDXL | SDXL_TEXT, seed=1, rank=8),
        write_small(folder / "wash.safetensors", SDXL_PEFT, seed=2, rank=4, alpha=None),
        write_small(folder / "robot.safetensors", SDXL, seed=3, rank=6, alpha=6.0),
    ]
