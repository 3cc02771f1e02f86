"""`resize`: one LoRA in a smaller rank, to a tolerance, or into a file of a given size."""

import argparse
import re

from ..core.errors import RecipeError
from ..lora.keys import NAMINGS
from .console import Console
from .options import UsageError
from .rewriting import add_files, kept_header, output_of, refuse_full_rank, rewritten, say_saved

LARGEST = 1e9  # of a unit
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files, and one way to say how small."""
    add_files(parser)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--rank", type=int, metavar="N", help="at most this rank for every target")
    how.add_argument("--tolerance", type=float, metavar="E", help="the relative error every target may have")
    how.add_argument("--size", metavar="BYTES", help="at most this size of the file, such as 50MB")
    parser.add_argument("--naming", choices=NAMINGS, default="comfyui", help="whose names the file has")


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the smaller LoRA.

    Raises:
        FileError: the file cannot be read.
        RecipeError: the rank, tolerance or size is not allowed.
        SaveError: the result cannot be written.
    """
    output = output_of(options)
    for name in ("rank", "tolerance"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise RecipeError(f"`--{name}` is {value}; it must be more than 0.")
    size_bytes = _bytes(options.size) if options.size else 0
    merged = rewritten(options, console)
    if not size_bytes:
        refuse_full_rank(merged)
    proof = merged.save(output, naming=options.naming, size_bytes=size_bytes, notes=kept_header(merged))
    return say_saved(proof, merged, options, console, "resize")


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", text.strip().upper())
    if not found or found[2] == "I" or not 0 < float(found[1]) <= LARGEST:
        raise UsageError(f"`{text}` is no size; write 50MB, 1.5GB or 64MiB.")
    return int(float(found[1]) * _UNITS[found[2]])
