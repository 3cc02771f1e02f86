"""Three LoRAs, and a folder to remember them in."""

from pathlib import Path

import pytest

from lora_alloy_testing.remembered import write_three


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The folder of a store."""
    return tmp_path / "memory"


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three LoRA files."""
    return write_three(tmp_path)
