"""`convert`: one LoRA, of any format, as plain LoRA in another naming."""

import argparse

from ..core.params import settable
from ..lora.keys import NAMINGS
from ..merging.recipe import Recipe
from .console import Console
from .options import add_max_loss
from .rewriting import add_files, kept_header, output_of, refuse_full_rank, rewritten, say_saved


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files, the naming, and how near a delta of full rank must be."""
    add_files(parser)
    parser.add_argument("--to", choices=NAMINGS, required=True, help="whose names the file has")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="at most this rank for every target")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, metavar="E", help="the relative error every target may have"
    )
    choice = settable(Recipe)["dtype"].choice
    parser.add_argument("--dtype", choices=choice.words if choice else None, default="auto")
    add_max_loss(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the converted LoRA.

    Raises:
        FileError: the file cannot be read.
        RecipeError: the rank, tolerance or dtype is not allowed, or plain LoRA cannot hold it exactly.
        SaveError: the result cannot be written, or the naming lacks a target.
    """
    output = output_of(options)
    merged = rewritten(options, console, options.dtype)
    refuse_full_rank(merged)
    proof = merged.save(output, naming=options.to, max_loss=options.max_loss, notes=kept_header(merged))
    return say_saved(proof, merged, options, console, "convert")
