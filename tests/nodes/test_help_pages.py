"""The help pages that ComfyUI shows for our nodes."""

import re
from pathlib import Path

import pytest

from lora_alloy.nodes import NODE_CLASS_MAPPINGS

PAGES = Path(__file__).resolve().parent.parent.parent / "web" / "docs"


@pytest.mark.parametrize("name", NODE_CLASS_MAPPINGS)
def test_a_help_page_names_every_input(name, install):
    install("ink.safetensors")
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    inputs = NODE_CLASS_MAPPINGS[name].INPUT_TYPES()
    every = {**inputs.get("required", {}), **inputs.get("optional", {})}
    wanted = {re.sub(r"(_text)?_\d+$", "", each) for each in every}
    assert wanted <= set(re.findall(r"\w+", page))


@pytest.mark.parametrize("name", NODE_CLASS_MAPPINGS)
def test_a_help_page_has_no_table(name):
    """The panel is too narrow: of two columns, it shows one."""
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert not re.findall(r"^\|", page, re.MULTILINE)
