"""`analyze`: how the LoRAs of a stack relate."""

import argparse
from pathlib import Path

from ..analysis.report import make_analysis
from ..api import analyze
from .analysis_page import analysis_page
from .console import Console
from .options import add_entries, read_entries, refuse_outputs
from .output import json_path, write_json, write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The entries, and what to show of them."""
    add_entries(parser)
    parser.add_argument("--blocks", action="store_true", help="also show every block of the model")
    parser.add_argument("--html", metavar="REPORT", type=Path, help="write a report to look at")


def run(options: argparse.Namespace, console: Console) -> int:
    """Analyse a stack.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
        SaveError: a report cannot be written.
    """
    entries = read_entries(options.entries)
    outputs = [*([options.html] if options.html else []), *json_path(options.json)]
    inputs = [entry.file.path for entry in entries if entry.file.path]
    refuse_outputs(outputs, inputs, is_forced=options.force)
    stack, measured = analyze(entries, progress=console.progress)
    analysis = make_analysis(stack, measured)
    console.say(analysis.text(has_blocks=options.blocks))
    if options.html:
        write_text(options.html, analysis_page(analysis))
        console.say(f"\nReport: {options.html}")
    write_json(options.json, "analyze", {"analysis": analysis.to_json()}, console)
    return 0
