"""`tune`: find the recipe that keeps most of every LoRA, merge by it, and prove the file."""

import argparse
from pathlib import Path

from ..api import saved_path
from ..autotuner.ranking import ranking_lines, to_json
from ..autotuner.scores import SCORES
from ..autotuner.space import FIELDS
from ..core.errors import RecipeError, SaveError
from ..lora.keys import NAMINGS
from ..merging.recipe import Recipe
from ..tuning import tune
from .console import Console
from .evaluator_options import add_evaluator, chosen_evaluator
from .merge import proof_lines, result
from .options import (
    UsageError,
    add_acting,
    add_base,
    add_entries,
    add_preserve,
    add_recipe,
    chosen_recipe,
    read_base,
    read_entries,
    refuse_outputs,
)
from .output import json_path, write_json, write_text
from .tune_page import tune_page

TOP_N = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The entries, what is tuned and what is not, and where results go."""
    add_entries(parser)
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="the LoRA to write; without it the ranking is all there is"
    )
    parser.add_argument(
        "--top-n",
        metavar="N",
        type=int,
        default=TOP_N,
        help=f"how many recipes are merged (default: {TOP_N})",
    )
    parser.add_argument(
        "--score", choices=tuple(SCORES), default="own_foreign", help="what ranks them (default: own_foreign)"
    )
    parser.add_argument(
        "--pick", metavar="RANK", type=int, default=1, help="which rank is written (default: 1, the best)"
    )
    add_base(parser)
    add_preserve(parser)
    add_acting(parser)
    parser.add_argument(
        "--naming", choices=NAMINGS, default="comfyui", help="whose names the file has (default: comfyui)"
    )
    parser.add_argument("--html", metavar="REPORT", type=Path, help="write a report to look at")
    add_recipe(parser)
    add_evaluator(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Tune a stack, and save the merge of the rank that was picked.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
        RecipeError: the recipe asks for what is tuned, or for something unknown.
        SaveError: a result cannot be written.
        ProofError: what was written is not what was merged; nothing was replaced.
    """
    recipe = _fixed(chosen_recipe(options))
    if options.pick != 1 and not options.output:
        raise UsageError("`--pick` says which rank is written; name the file with `-o OUT`.")
    output = saved_path(options.output) if options.output else None
    entries = read_entries(options.entries, options.preserve, options.conflict_mode, options.key_filter)
    outputs = [
        *([output] if output else []),
        *([options.html] if options.html else []),
        *json_path(options.json),
    ]
    inputs = [entry.file.path for entry in entries if entry.file.path]
    inputs += [path for path in (options.recipe, options.base) if path]
    refuse_outputs(outputs, inputs, is_forced=options.force, replaceable=output)
    if output and options.base and output.exists() and output.samefile(options.base):
        raise SaveError(f"`{output}` is the base model; name another file for the LoRA.")
    with chosen_evaluator(options) as evaluate:
        found = tune(
            entries,
            recipe,
            model=read_base(options),
            top_n=options.top_n,
            score=options.score,
            evaluate=evaluate,
            progress=console.progress,
        )
    labels = [entry.file.label for entry in found.tuned.stack.entries]
    for line in ranking_lines(found.tuned, labels):
        console.say(line)
    told: dict[str, object] = {"tuning": to_json(found.tuned, labels)}
    if output:
        merged = found.pick(options.pick, progress=console.progress)
        # Again, since somebody else may have put a file there meanwhile.
        refuse_outputs(outputs, inputs, is_forced=options.force, replaceable=output)
        proof = merged.save(output, naming=options.naming)
        console.say("")
        console.say(f"Rank {options.pick} of the ranking, written:")
        console.say(merged.report.text())
        console.say("")
        for line in proof_lines(proof):
            console.say(line)
        told |= result(merged, proof)
    if options.html:
        write_text(options.html, tune_page(found.tuned, labels, options.pick))
        console.say(f"Report: {options.html}")
    write_json(options.json, "tune", told, console)
    return 0


def _fixed(recipe: Recipe) -> Recipe:
    """The recipe, if it leaves open what is tuned.

    Raises:
        RecipeError: it does not.
    """
    given, plain = recipe.to_json(), Recipe().to_json()
    named = [f"`{field}`" for field in FIELDS if given[field] != plain[field]]
    if named:
        raise RecipeError(
            f"{', '.join(named)}: that is what `tune` finds out. Leave it out, or merge by it (`merge`)."
        )
    return recipe
