"""The flags of an evaluator, and the evaluator that they ask for."""

import argparse
import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..autotuner.evaluator import MODES
from ..autotuner.evaluators import evaluator_of
from ..autotuner.offline import TIMEOUT
from ..autotuner.search import Evaluate
from ..core.errors import RecipeError
from .options import UsageError


def add_evaluator(parser: argparse.ArgumentParser) -> None:
    """Who else judges the candidates, how it counts, and where it runs."""
    group = parser.add_argument_group("evaluator")
    group.add_argument(
        "--evaluator",
        metavar="WHAT",
        default="",
        help="who else scores the merged candidates, 0 to 1: a Python function (score.py, score.py:name,"
        " package.module:name), a command that prints a score ('./score {lora}'), or a workflow for --workers"
        " (score.json)",
    )
    group.add_argument(
        "--evaluator-mode",
        choices=MODES,
        default="blend",
        help="how its score counts: beside ours, alone, or times ours (default: blend)",
    )
    group.add_argument(
        "--evaluator-weight", metavar="W", type=float, default=0.5, help="its share in a blend (default: 0.5)"
    )
    group.add_argument("--evaluator-context", metavar="JSON", default="", help="values for the function")
    group.add_argument(
        "--evaluator-timeout",
        metavar="SECONDS",
        type=float,
        default=TIMEOUT,
        help=f"the longest a command or workflow may take for a candidate (default: {TIMEOUT:g})",
    )
    group.add_argument(
        "--workers",
        metavar="ADDRESSES",
        default="",
        help="where evaluations run: ComfyUI servers (host:port,host:port), a dask scheduler (tcp://host:8786), or"
        " dask:N for N processes of this machine (default: here, one after the other)",
    )
    group.add_argument(
        "--worker-loras",
        metavar="FOLDER",
        default="",
        help="the folder of LoRAs that the ComfyUI servers read",
    )
    group.add_argument(
        "--score-node",
        metavar="NODE",
        default="",
        help="title or id of the node that shows the score (default: score)",
    )


def chosen_evaluator(options: argparse.Namespace) -> AbstractContextManager[Evaluate | None]:
    """The evaluator, to be entered before the sweep and left afterwards; None if there is none.

    Raises:
        UsageError: there are workers and no evaluator.
        RecipeError: the context is no JSON.
    """
    workers = [one.strip() for one in options.workers.split(",") if one.strip()]
    if not options.evaluator:
        if workers:
            raise UsageError("`--workers` run an evaluator: name one with `--evaluator`.")
        return nullcontext()
    return evaluator_of(
        options.evaluator,
        options.evaluator_mode,
        options.evaluator_weight,
        context=_context(options.evaluator_context),
        timeout=options.evaluator_timeout,
        workers=workers,
        folder=options.worker_loras,
        score_node=options.score_node,
    )


def _context(text: str) -> Any:
    if not text.strip():
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise RecipeError(f"`--evaluator-context` is no JSON: {problem}.") from None
