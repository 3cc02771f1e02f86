"""The flag that lets a command remember, and what it says of it."""

import argparse

from ..cache.places import FOLDER, default_folder, default_limit
from ..cache.store import MODES, Store
from .console import Console


def add_memory(parser: argparse.ArgumentParser) -> None:
    """The flag that lets a command remember; it does not unless it is asked to."""
    parser.add_argument(
        "--memory",
        choices=MODES,
        default="disabled",
        help="remember the analysis and the result for the next run, and take them from the last: `auto` reads and"
        " writes, `read_only` reads, `clear_and_run` makes this stack anew; `lora-alloy memory` shows what it takes"
        f" (default: disabled; the folder is {FOLDER} or the platform's)",
    )


def read_memory(options: argparse.Namespace) -> Store:
    """The store that `--memory` asks for.

    Raises:
        RecipeError: the environment names a limit that is none.
    """
    return Store(default_folder(), default_limit(), options.memory)


def say_memory(store: Store, is_recalled: bool, console: Console) -> None:
    """Whether a result was remembered, and what went wrong with that."""
    if is_recalled:
        console.say(f"From memory: this stack was merged before, in the same way; `{store.folder}` had it.")
    for note in store.notes:
        console.warn(f"Note: {note}")
