"""The Python that README.md and docs/python.md show runs as it stands, and does what they say."""

import re
from pathlib import Path

import pytest

from lora_alloy_testing.small_loras import SDXL, SDXL_PEFT, SDXL_TEXT, write_small

ROOT = Path(__file__).resolve().parent.parent


def blocks(path: str) -> list[str]:
    found = re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), re.DOTALL)
    assert found, path
    return found


@pytest.mark.parametrize("path", ["README.md", "docs/python.md"])
def test_what_is_shown_runs_in_order(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_small(tmp_path / "ink.safetensors", SDXL | SDXL_TEXT, seed=1, rank=8)
    write_small(tmp_path / "portrait.safetensors", SDXL_PEFT, seed=2, alpha=None)
    write_small(tmp_path / "light.safetensors", SDXL, seed=3)
    for block in blocks(path):
        exec(compile(block, path, "exec"), {})
    assert (tmp_path / "merged.safetensors").exists()
    assert "0.0" in capsys.readouterr().out.splitlines()[-1].split()


def test_every_public_name_is_documented():
    import lora_alloy

    shown = set(re.findall(r"\w+", (ROOT / "docs" / "python.md").read_text(encoding="utf-8")))
    results = {"Merged", "Stack"}  # what functions return; nobody makes them by name
    assert shown >= set(lora_alloy._API) - results
