"""`inspect`: what each file is. A bad file is reported, and the others still are."""

import argparse
from pathlib import Path

from ..core.collecting import uncollected
from ..core.errors import FileError
from ..lora.base import open_base
from ..lora.estimate import estimate_merge
from ..lora.file import LoraFile, open_lora
from ..lora.inspection import Inspection, inspect_opened
from .console import Console
from .described import described, size
from .inspect_page import inspect_page
from .options import refuse_outputs
from .output import json_path, write_json, write_text

WIDTH = 13


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files."""
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path, help="a LoRA file")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        type=Path,
        help="also say what of each file this model has, in modules and in effect; reads the files' values",
    )
    parser.add_argument("--html", metavar="PAGE", type=Path, help="write a page to look at")


def run(options: argparse.Namespace, console: Console) -> int:
    """Report on every file; 1 if any could not be read.

    Raises:
        FileError: the model cannot be read, or is none.
        SaveError: the page or the JSON cannot be written.
    """
    outputs = [*([options.html] if options.html else []), *json_path(options.json)]
    inputs = [*options.files, *([options.model] if options.model else [])]
    refuse_outputs(outputs, inputs, is_forced=options.force)
    model = open_base(options.model) if options.model else None
    opened: list[LoraFile] = []
    found: list[Inspection] = []
    failed: list[dict[str, str]] = []
    for path in options.files:
        try:
            with uncollected():
                file = open_lora(path)
                inspection = inspect_opened(file, model=model)
        except FileError as problem:
            failed.append({"path": str(path), "problem": str(problem)})
            console.warn(str(problem))
            continue
        opened.append(file)
        found.append(inspection)
        console.say("\n".join(_lines(inspection)) + "\n")
    estimate = estimate_merge(opened)
    if opened:
        console.say(estimate.text())
    if options.html:
        write_text(options.html, inspect_page(found, [one["problem"] for one in failed], estimate))
        console.say(f"Page: {options.html}")
    result = {"files": [inspection.to_json() for inspection in found], "failed": failed, "merge": estimate}
    write_json(options.json, "inspect", result, console)
    return 1 if failed else 0


def _lines(one: Inspection) -> list[str]:
    lines = [f"{one.path}  {size(one.size_bytes)}"]
    lines += (f"  {name:<{WIDTH}}{text}" for name, text in described(one))
    lines += (f"  {'problem':<{WIDTH}}{problem}" for problem in one.problems)
    return lines
