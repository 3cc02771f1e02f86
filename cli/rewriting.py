"""What `resize` and `convert` share: one file in, one file out, its header kept, the error stated."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from ..api import Merged, rewrite, saved_path
from ..core.errors import RecipeError, SaveError
from ..lora.factors import LowRank
from ..merging.saving import Proof
from .console import Console
from .described import size
from .options import add_base, read_base, refuse_outputs
from .output import json_path, write_json

# What another file's header says of its own bytes or factors is not true of the new file.
_STALE = ("lora_alloy.", "sshs_", "lora_adapter_metadata", "modelspec.hash_sha256", "format", "tool")
_OWN = ("ss_network_dim", "ss_network_alpha", "ss_network_module", "ss_network_args", "source_loras")


def add_files(parser: argparse.ArgumentParser) -> None:
    """The file to read, and the one to write."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a LoRA file")
    parser.add_argument(
        "-o", "--output", metavar="OUT", required=True, help="the LoRA to write; .safetensors is added"
    )
    add_base(parser)
    parser.add_argument("--partial", action="store_true", help="go on without modules that are not read")
    parser.add_argument(
        "--honour-metadata",
        action="store_true",
        help="take scales from the header where the file stores no alpha",
    )


def output_of(options: argparse.Namespace) -> Path:
    """Where the result goes.

    Raises:
        SaveError: it exists, or is no place for a file.
    """
    output = saved_path(options.output)
    outputs = [output, *json_path(options.json)]
    inputs = [options.file, *([options.base] if options.base else [])]
    refuse_outputs(outputs, inputs, is_forced=options.force, replaceable=output)
    if options.base and output.exists() and options.base.exists() and output.samefile(options.base):
        raise SaveError(f"`{output}` is the base model; name another file for the LoRA.")
    return output


def rewritten(options: argparse.Namespace, console: Console, dtype: str = "auto") -> Merged:
    """The one LoRA, at the rank or tolerance that was asked for.

    Raises:
        FileError: the file or the base model cannot be read.
        StackError: part of it cannot be read.
        RecipeError: rank, tolerance or dtype is not allowed.
    """
    return rewrite(
        options.file,
        rank=options.rank or 0,
        tolerance=options.tolerance or 0.0,
        dtype=dtype,
        model=read_base(options),
        partial=options.partial,
        honour_metadata=options.honour_metadata,
        progress=console.progress,
    )


def kept_header(merged: Merged) -> dict[str, str]:
    """What the file's header says that stays true: training, triggers, tags."""
    metadata: Mapping[str, str] = merged.stack.entries[0].file.tensors.metadata
    return {name: text for name, text in metadata.items() if not name.startswith(_STALE) and name not in _OWN}


def refuse_full_rank(merged: Merged) -> None:
    """Stop where the result would not be plain LoRA.

    Raises:
        RecipeError: deltas have no low rank, and none was asked for.
    """
    full = [patch for patch in merged.patches if not isinstance(patch.delta, LowRank)]
    if full:
        raise RecipeError(
            f"{len(full)} of {len(merged)} targets have no low rank, the first {full[0].target}: plain LoRA can"
            " only come near them. Say how near, with `--rank N`, `--tolerance E`, or `resize --size`."
        )


def say_saved(
    proof: Proof, merged: Merged, options: argparse.Namespace, console: Console, command: str
) -> int:
    """Say what was written, for people and machines."""
    before = merged.stack.entries[0].file.tensors.size_bytes
    low, high = merged.report.ranks
    console.say(
        f"{merged.stack.entries[0].file.label}: {size(before)}, {len(merged)} targets"
        f" for {merged.report.family}."
    )
    console.say(f"Saved: {proof.path}, {size(proof.size_bytes)}.")
    console.say(
        f"Proof: read back, {proof.target_count} targets are as computed to {proof.read_error:.1e}. Against the"
        f" original the largest error of a target is {proof.merge_error:.1e}, on {proof.worst}."
    )
    for note in merged.plan.notes:
        console.say(f"Note: {note}")
    result = {"proof": proof, "before_bytes": before, "ranks": [low, high]}
    write_json(options.json, command, result, console)
    return 0
