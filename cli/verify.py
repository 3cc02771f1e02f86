"""`verify`: prove a merged file against what it was made of, again."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..api import verify
from ..core.errors import ProofError, StackError
from ..lora.file import open_lora
from ..lora.stack import Entry
from ..merging.metadata import Described, described
from ..merging.provenance import disagreements, find_sources, with_preserved
from ..merging.saving import Proof
from .console import Console
from .options import (
    add_base,
    add_device,
    add_entries,
    add_preserve,
    read_base,
    read_entries,
    read_recipe,
    refuse_outputs,
)
from .output import json_path, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and what it was made of."""
    parser.add_argument("output", metavar="OUT", type=Path, help="a LoRA that `merge` wrote")
    add_entries(parser, "*")
    parser.add_argument(
        "--dir",
        metavar="FOLDER",
        type=Path,
        action="append",
        default=[],
        help="where the LoRAs lie that the file names, when no entries are given; may be given again"
        " (default: beside OUT)",
    )
    add_base(parser)
    add_device(parser)
    add_preserve(parser)
    parser.add_argument(
        "--recipe", metavar="FILE", type=Path, help="what was asked (default: as the file says)"
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Merge again and compare with the file, target by target.

    Raises:
        FileError: a file cannot be read.
        StackError: what the file was made of is not there, or does not fit together.
        RecipeError: the recipe asks for something unknown.
        ProofError: the file is not what its inputs give.
    """
    refuse_outputs(json_path(options.json), [options.output], is_forced=options.force)
    told = described(open_lora(options.output).tensors.metadata)
    recipe = read_recipe(options.recipe) if options.recipe else None
    entries = _entries(options, told)
    try:
        proof = verify(
            options.output,
            entries,
            recipe,
            model=read_base(options),
            progress=console.progress,
            device=options.device,
        )
    except ProofError as problem:
        hints = disagreements(entries, told) if told else []
        raise ProofError(" ".join([str(problem), *hints])) from None
    console.say(
        f"Proven: {options.output} is what {_listed(entries)} give, on all {proof.target_count} targets"
        f" {_how_far(proof)}. Its error against the exact merge is {proof.merge_error:.1e}."
    )
    write_json(options.json, "verify", {"proof": proof}, console)
    return 0


def _entries(options: argparse.Namespace, told: Described | None) -> Sequence[Entry]:
    if options.preserve and not options.entries:
        raise StackError("`--preserve` counts the entries that are given, and none are; name the LoRAs.")
    if options.entries:
        entries = read_entries(options.entries, options.preserve)
        return entries if options.preserve or told is None else with_preserved(entries, told)
    if told is None:
        raise ProofError(
            f"`{options.output}` does not say how it was made; name the LoRAs with their strengths and"
            " `--recipe`."
        )
    return find_sources(told, options.dir or [options.output.parent])


def _how_far(proof: Proof) -> str:
    if proof.read_error == 0.0:
        return "bit for bit"
    return f"to {proof.read_error:.1e}, which is how differently machines round"


def _listed(entries: Sequence[Entry]) -> str:
    return ", ".join(
        f"{entry.file.label} at {entry.strength:g}{' (preserved)' if entry.preserve else ''}"
        for entry in entries
    )
