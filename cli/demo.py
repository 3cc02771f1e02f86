"""`demo`: three small real LoRAs, merged, proven, and reported on."""

import argparse
from dataclasses import replace
from pathlib import Path

from ..api import merge
from ..core.errors import FileError, SaveError
from ..core.tensorfile import open_tensors
from ..core.wholefile import refuse_place
from ..lora.file import open_lora
from ..lora.sample import INK, MARK, ROBOT, SAMPLES, WATERCOLOR, write_sample
from ..lora.stack import Entry
from ..proving import verify
from .console import Console, program
from .merge import proof_lines, result
from .merge_page import merge_page
from .options import read_text, refuse_outputs
from .output import json_path, write_json, write_text

STRENGTHS = {INK.name: 1.0, WATERCOLOR.name: 0.8, ROBOT.name: 0.9}
PRESERVED = ROBOT.name
MERGED, REPORT = "demo-merged.safetensors", "demo-report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to put it all."""
    parser.add_argument(
        "--dir",
        metavar="D",
        type=Path,
        default=Path("lora-alloy-demo"),
        help="the folder (default: %(default)s)",
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Make, merge, prove, report.

    Raises:
        SaveError: the folder cannot be written, or holds other files of these names.
        ProofError: the result is not what was merged.
    """
    folder: Path = options.dir
    _refuse_strangers(folder, is_forced=options.force)
    refuse_outputs(json_path(options.json), [], is_forced=options.force)
    console.say(f"Making three small LoRAs for Stable Diffusion XL in {folder}:")
    entries = []
    for sample in SAMPLES:
        file = open_lora(write_sample(sample, folder))
        entries.append(replace(Entry(file, STRENGTHS[sample.name]), preserve=sample.name == PRESERVED))
        console.say(f"  {sample.name:<25} rank {sample.rank:>2}, {len(file.modules)} modules, {sample.says}")
    merged = merge(entries, progress=console.progress)
    proof = merged.save(folder / MERGED, notes={MARK: MERGED})
    console.say(f"\n{merged.report.text()}\n")
    for line in proof_lines(proof):
        console.say(line)
    again = verify(proof.path, entries, progress=console.progress)
    console.say(f"Verified again from the three files: largest difference {again.read_error:.1e}.")
    # Without its time, which is another one at every run.
    report = replace(merged.report, cost=None)
    write_text(folder / REPORT, merge_page(report, merged.plan, proof, "comfyui"))
    console.say(f"Report: {(folder / REPORT).absolute()}")
    console.say(
        f"\nNow with your own: {program()} merge a.safetensors b.safetensors:0.8 -o merged --html report.html"
    )
    write_json(options.json, "demo", {**result(merged, proof), "folder": folder.absolute()}, console)
    return 0


def _refuse_strangers(folder: Path, *, is_forced: bool) -> None:
    """A second run replaces the first one's files, and nobody else's."""
    for name in (*(sample.name for sample in SAMPLES), MERGED, REPORT):
        path = folder / name
        refuse_place(path)
        if path.exists() and not is_forced and not _is_ours(path):
            raise SaveError(
                f"`{path}` is not of the demo, which would replace it; choose another folder (`--dir`), or"
                " add `--force`."
            )


def _is_ours(path: Path) -> bool:
    try:
        if path.suffix == ".html":
            return 'name="generator" content="LoRA Alloy' in read_text(path)
        return MARK in open_tensors(path).metadata
    except FileError:
        return False
