"""What we and others read of every naming and format: the findings of `docs/compatibility.md`.

The findings are numbers: by reader, family and label of a file (see `namings`), how many of its modules reach the
weight they are for. They lie in `compatibility.json`, from which `compatibility_page` writes the document;
`write_compatibility` renews both. A reader is measured where it is installed:

- ours, always: the stack that a merge of the file would work on;
- ComfyUI, in a process of its own, from checkouts;
- diffusers, from its own conversions.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np

from .comfy_tree import ComfyTree
from .format_cases import FORMAT_CASES, verdict
from .named_tensors import first_columns, telling, tensors_of
from .namings import NamedFile, files_of
from lora_alloy.core.tensorfile import tensors_in_memory
from lora_alloy.lora.entries import Contribution
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy.lora.keys import FAMILIES, Family, key_map, resolve
from lora_alloy.lora.stack import Entry, Stack, build_stack

HERE = Path(__file__).parent
FINDINGS = HERE / "compatibility.json"
OURS = "LoRA Alloy"

Counts = dict[str, dict[str, int]]
"""By family and label, how many modules reach their weight."""


class Found(TypedDict):
    """What ComfyUI's process writes: by family and label modules, strayed ones, the largest difference; formats."""

    families: dict[str, dict[str, list[float]]]
    formats: dict[str, str]


class Findings(TypedDict):
    """What the document says: how many modules each file has, what each reader takes, what strays in it."""

    modules: Counts
    read: dict[str, Counts]
    strayed: dict[str, Counts]
    formats: dict[str, dict[str, str]]


def stored() -> Findings:
    """The findings as committed."""
    return json.loads(FINDINGS.read_text(encoding="utf-8"))


def modules() -> Counts:
    """How many modules each file has."""
    return {one.key: {file.label: file.total for file in files_of(one)} for one in FAMILIES}


def read_by_us(family: Family) -> tuple[dict[str, int], float]:
    """What we read of a family, and the largest relative difference from the textbook's delta."""
    worst = 0.0
    counts = {}
    for file in files_of(family):
        read = _read_encoder(file) if file.encoder else _read_model(file)
        counts[file.label] = file.count(read)
        worst = max([worst, *(_off(file, name, read[name]) for name in telling(file) if name in read)])
    return counts, worst


def _read_model(file: NamedFile) -> dict[str, LowRank]:
    """By name, the deltas of modules that reach their weight: the file's family is found in it alone."""
    # a control LoRA's norms need the model, and are not counted
    stack = build_stack([Entry(_opened(file))], partial=True)
    groups = {group.target: group for group in stack.groups}
    return {
        name: _delta(stack, groups[route.target].contributions[0])
        for name, route in file.routes.items()
        if route.target in groups
    }


def _opened(file: NamedFile) -> LoraFile:
    # the hash is of no use here, and would take longer than all else
    return LoraFile(file.label, None, tensors_in_memory(Path(file.label), tensors_of(file), {}), file.label)


def _delta(stack: Stack, contribution: Contribution) -> LowRank:
    delta = contribution.load(stack.entries[0].file)
    assert isinstance(delta, LowRank)
    return delta


def _read_encoder(file: NamedFile) -> dict[str, LowRank]:
    """As `_read_model`; several families have one encoder, and the model's modules beside it tell which it is."""
    opened = _opened(file)
    family = next((one for one in opened.families if one.key == file.family), None)
    if family is None:
        return {}
    known = key_map(family)
    return {
        name: _loaded(opened, name)
        for name, route in file.routes.items()
        if name in opened.modules and resolve(name, known) == route
    }


def _loaded(file: LoraFile, name: str) -> LowRank:
    delta = file.load(file.modules[name])
    assert isinstance(delta, LowRank)
    return delta


def _off(file: NamedFile, name: str, delta: LowRank) -> float:
    expected = first_columns(file, name)
    up, down = delta.up.double().numpy(), delta.down[:, : expected.shape[1]].double().numpy()
    off = float(np.linalg.norm(delta.scale * up @ down - expected))
    return off / float(np.linalg.norm(expected))


def formats_read_by_us() -> dict[str, str]:
    """What becomes of each of `FORMAT_CASES` with us."""
    found = {}
    for case in FORMAT_CASES:
        file = lora_in_memory("case", case.tensors, {})
        module = file.modules.get(case.module)
        delta = file.load(module, case.base) if module else None
        found[case.title] = verdict(delta.flat().double().numpy() if delta else None, case.expected)
    return found


def read_by_comfyui(tree: ComfyTree, folder: Path) -> Found:
    """What ComfyUI makes of every file and format; the process writes into `folder`.

    Raises:
        RuntimeError: its process failed.
    """
    out = folder / f"names-{tree.version}.json"
    command = [sys.executable, str(HERE / "read_names_in_comfyui.py"), str(tree.path), str(out)]
    ran = subprocess.run(
        command, env=tree.environment(), capture_output=True, text=True, timeout=600, check=False
    )
    if ran.returncode:
        raise RuntimeError(f"ComfyUI {tree.version} could not read the files:\n{ran.stderr[-4000:]}")
    return json.loads(out.read_text(encoding="utf-8"))


def counts_of(found: Mapping[str, Mapping[str, list[float]]], place: int) -> Counts:
    """One number of each of ComfyUI's findings: 0 is what it reads, 1 what strays; without zeros of the latter."""
    return {
        family: {label: int(one[place]) for label, one in files.items() if place == 0 or one[place]}
        for family, files in found.items()
    }
