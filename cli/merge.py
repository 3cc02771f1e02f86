"""`merge`: a stack into one LoRA, saved and proven."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..analysis.blocks import block_of
from ..api import Merged, merge, plan, saved_path
from ..core.errors import RecipeError, SaveError
from ..lora.keys import NAMINGS
from ..lora.stack import Entry
from ..merging.plan import Plan, TargetPlan
from ..merging.recipe import Recipe
from ..merging.report_text import branch_line, choice_words
from ..merging.saving import Proof
from ..merging.summary import choices_of, work_of
from .console import Console
from .described import size
from .merge_page import merge_page
from .options import (
    UsageError,
    add_acting,
    add_base,
    add_device,
    add_entries,
    add_max_loss,
    add_preserve,
    add_recipe,
    chosen_recipe,
    read_base,
    read_entries,
    read_plan,
    refuse_outputs,
)
from .output import json_path, write_json, write_text
from .remembering import add_memory, read_memory, say_memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The entries, the recipe, and where results go."""
    add_entries(parser)
    parser.add_argument("-o", "--output", metavar="OUT", help="the LoRA to write; .safetensors is added")
    add_base(parser)
    add_device(parser)
    add_preserve(parser)
    add_acting(parser)
    parser.add_argument(
        "--naming", choices=NAMINGS, default="comfyui", help="whose names the file has (default: comfyui)"
    )
    parser.add_argument("--html", metavar="REPORT", type=Path, help="write a report to look at")
    parser.add_argument(
        "--plan-only", action="store_true", help="decide and say what would be done; write no LoRA"
    )
    parser.add_argument(
        "--plan", metavar="FILE", type=Path, help="replay a plan that `--json` wrote, instead of a recipe"
    )
    add_max_loss(parser)
    add_memory(parser)
    add_recipe(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Merge a stack, save the result and prove it.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
        RecipeError: the recipe or the plan asks for something unknown or contradictory.
        SaveError: a result cannot be written.
        ProofError: what was written is not what was merged; nothing was replaced.
    """
    recipe = _recipe_or_plan(options)
    if options.plan_only:
        return _show_plan(options, recipe, console)
    if not options.output:
        raise UsageError("Name the file to write with `-o OUT`, or ask for the plan alone (`--plan-only`).")
    output = saved_path(options.output)
    entries = _entries(options)
    outputs = [output, *([options.html] if options.html else []), *json_path(options.json)]
    inputs = _inputs(options, entries)
    refuse_outputs(outputs, inputs, is_forced=options.force, replaceable=output)
    if options.base and output.exists() and options.base.exists() and output.samefile(options.base):
        raise SaveError(f"`{output}` is the base model; name another file for the LoRA.")
    memory = read_memory(options)
    merged = merge(
        entries,
        recipe,
        model=read_base(options),
        progress=console.progress,
        device=options.device,
        memory=memory,
    )
    # Again, since somebody else may have put a file there meanwhile.
    refuse_outputs(outputs, inputs, is_forced=options.force, replaceable=output)
    proof = merged.save(output, naming=options.naming, max_loss=options.max_loss)
    console.say(merged.report.text())
    console.say("")
    for line in proof_lines(proof):
        console.say(line)
    say_memory(memory, merged.is_recalled, console)
    if options.html:
        write_text(options.html, merge_page(merged.report, merged.plan, proof, options.naming))
        console.say(f"Report: {options.html}")
    write_json(options.json, "merge", result(merged, proof), console)
    return 0


def proof_lines(proof: Proof) -> list[str]:
    """What was written, and what re-reading it showed."""
    read = "bit for bit" if proof.read_error == 0.0 else f"to {proof.read_error:.1e}"
    return [
        f"Saved: {proof.path}, {size(proof.size_bytes)}, for strength 1.0 in any loader.",
        f"Proof: read back, {proof.target_count} targets equal the merge {read}; against the exact merge the"
        f" largest error is {proof.merge_error:.1e}.",
    ]


def result(merged: Merged, proof: Proof) -> dict[str, object]:
    """A merge for machines: proof, report, and the plan that replays it."""
    return {"proof": proof, "report": merged.report.to_json(), "plan": merged.plan.to_json()}


def _entries(options: argparse.Namespace) -> list[Entry]:
    return read_entries(options.entries, options.preserve, options.conflict_mode, options.key_filter)


def _inputs(options: argparse.Namespace, entries: Sequence[Entry]) -> list[Path]:
    files = [entry.file.path for entry in entries if entry.file.path]
    return [*files, *(path for path in (options.recipe, options.plan, options.base) if path)]


def _recipe_or_plan(options: argparse.Namespace) -> Recipe | Plan:
    recipe = chosen_recipe(options)
    if options.plan is None:
        return recipe
    if recipe != Recipe() or options.recipe or options.preset:
        raise RecipeError("A plan says already what to do: `--plan` takes no recipe, preset or flag of one.")
    return read_plan(options.plan)


def _show_plan(options: argparse.Namespace, recipe: Recipe | Plan, console: Console) -> int:
    if options.output or options.html or isinstance(recipe, Plan):
        raise UsageError("`--plan-only` writes no LoRA and no report: leave out `-o`, `--html` and `--plan`.")
    entries = _entries(options)
    refuse_outputs(json_path(options.json), _inputs(options, entries), is_forced=options.force)
    memory = read_memory(options)
    made = plan(entries, recipe, model=read_base(options), progress=console.progress, memory=memory)
    for line in _plan_lines(made):
        console.say(line)
    say_memory(memory, False, console)
    write_json(options.json, "plan", {"plan": made.to_json()}, console)
    return 0


def _plan_lines(plan: Plan) -> list[str]:
    lines = [f"A plan for {len(plan.sources)} LoRAs and {len(plan.targets)} targets. Nothing was merged.", ""]
    for number, source in enumerate(plan.sources, 1):
        words = ["held out" if source.held else "preserved"] if source.preserve else []
        words += [
            word.replace("_", " ") for word in (source.conflict_mode, source.key_filter) if word != "all"
        ]
        kept = "".join(f", {word}" for word in words)
        lines.append(f"{number}. {source.label} at {source.strength:g} (CLIP {source.clip_strength:g}){kept}")
    lines.append("")
    lines += _block_lines(plan)
    lines.append(f"Why: {'; '.join(map(choice_words, choices_of(plan.targets)))}.")
    lines += (f"Element by element: {work.sentence()}." for work in work_of(plan.targets))
    for label, inner in plan.inner.items():
        lines.append(f"Inside {label}: {'; '.join(map(choice_words, choices_of(inner.targets)))}.")
        lines += (f"Inside {label}: {work.sentence()}." for work in work_of(inner.targets))
    lines += (branch_line(branch, [source.label for source in plan.sources]) for branch in plan.scales)
    lines += (f"Note: {note}" for note in plan.notes)
    return lines


def _block_lines(plan: Plan) -> list[str]:
    """Per block, the methods and the mean coefficient of every LoRA; the JSON has them target by target."""
    blocks: dict[str, list[TargetPlan]] = {}
    for target in plan.targets:
        blocks.setdefault(block_of(target.target), []).append(target)
    width = max(map(len, blocks))
    lines = [f"{'block':<{width}}  targets  method, and what each LoRA is multiplied by on average"]
    for name, targets in blocks.items():
        methods = ", ".join(dict.fromkeys(target.method for target in targets))
        found: dict[int, list[float]] = {}
        for target in targets:
            for entry, coefficient in zip(target.entries, _multiplied(target), strict=True):
                found.setdefault(entry, []).append(coefficient)
        terms = "  ".join(
            f"{sum(found[entry]) / len(found[entry]):+.3f} × {entry + 1}" for entry in sorted(found)
        )
        lines.append(f"{name:<{width}}{len(targets):9d}  {methods}: {terms}")
    return [*lines, ""]


def _multiplied(target: TargetPlan) -> tuple[float, ...]:
    """What the deltas of a target are multiplied by; in element-wise work, before the method averages them."""
    if target.work is None:
        return target.coefficients
    strengths = list(target.coefficients)
    for place, strength in zip(target.work.places, target.work.strengths, strict=True):
        strengths[place] = strength
    return tuple(strengths)
