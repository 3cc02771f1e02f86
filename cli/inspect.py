"""`inspect`: what each file is. A bad file is reported, and the others still are."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import FileError
from ..lora.inspection import Inspection, inspect_file
from .console import Console
from .options import refuse_outputs
from .output import json_path, write_json

WIDTH = 13


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files."""
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path, help="a LoRA file")


def run(options: argparse.Namespace, console: Console) -> int:
    """Report on every file; 1 if any could not be read.

    Raises:
        SaveError: the JSON cannot be written.
    """
    refuse_outputs(json_path(options.json), options.files, is_forced=options.force)
    found: list[Inspection] = []
    failed: list[dict[str, str]] = []
    for path in options.files:
        try:
            inspection = inspect_file(path)
        except FileError as problem:
            failed.append({"path": str(path), "problem": str(problem)})
            console.warn(str(problem))
            continue
        found.append(inspection)
        console.say("\n".join(_lines(inspection)) + "\n")
    result = {"files": [inspection.to_json() for inspection in found], "failed": failed}
    write_json(options.json, "inspect", result, console)
    return 1 if failed else 0


def _lines(one: Inspection) -> list[str]:
    told = {
        "format": _counts(one.formats),
        "family": one.title,
        "written by": f"{one.trainer.name}: {one.trainer.evidence}" if one.trainer else "",
        "rank": _counts(one.ranks) if len(one.ranks) != 1 else str(next(iter(one.ranks))),
        "scale": _scale(one) if one.ranks else "",
        "dtype": ", ".join(one.dtypes) if len(one.dtypes) == 1 else _counts(one.dtypes),
        "targets": _targets(one),
        "tensors": _tensors(one),
        "base model": ", ".join(one.base_model.values()),
        "trigger": one.trigger,
        "tags": ", ".join(one.tags),
    }
    lines = [f"{one.path}  {size(one.size_bytes)}"]
    lines += (f"  {name:<{WIDTH}}{text}" for name, text in told.items() if text)
    lines += (f"  {'problem':<{WIDTH}}{problem}" for problem in one.problems)
    return lines


def size(count: int) -> str:
    """A number of bytes, for people."""
    if count < 1_000_000:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:.1f} MB" if count < 1_000_000_000 else f"{count / 1e9:.2f} GB"


def _counts(counts: Mapping[str, int] | Mapping[int, int] | Mapping[float, int]) -> str:
    return ", ".join(f"{name} ({_modules(count)})" for name, count in counts.items())


def _modules(count: int) -> str:
    return "1 module" if count == 1 else f"{count:,} modules"


def _scale(one: Inspection) -> str:
    alphas = one.alphas
    if not alphas.stored_count:
        return "1: no alpha is stored"
    scales = ", ".join(map(str, alphas.scales)) if len(alphas.scales) == 1 else _counts(alphas.scales)
    missing = f"; {_modules(alphas.missing_count)} without alpha: 1" if alphas.missing_count else ""
    return f"alpha / rank = {scales}{missing}"


def _targets(one: Inspection) -> str:
    convolutions = f", {one.convolution_count} of them convolutions" if one.convolution_count else ""
    return f"{one.model_count} in the model, {one.clip_count} in text encoders{convolutions}"


def _tensors(one: Inspection) -> str:
    parts = [f"{one.used_count} used"]
    parts += (f"{count} skipped ({reason})" for reason, count in one.skipped.items())
    if one.unknown:
        parts.append(f"{len(one.unknown)} unknown")
    return ", ".join(parts)
