"""Runs one command: its own parser, its own console."""

from collections.abc import Sequence
from importlib import import_module

from . import COMMANDS
from .console import Console, program
from .options import Parser, add_common


def run(name: str, words: Sequence[str]) -> int:
    """Run the command `name` with the words behind it, and return its exit code.

    Raises:
        AlloyError: whatever a user can do something about.
    """
    command = import_module(f".{name}", __package__)
    parser = Parser(prog=f"{program()} {name}", description=COMMANDS[name], allow_abbrev=False)
    command.add_arguments(parser)
    add_common(parser)
    try:
        options = parser.parse_intermixed_args(list(words))
    except SystemExit as leaving:  # --help has been shown
        return int(leaving.code or 0)
    with Console(is_quiet=options.quiet, has_json_on_stdout=options.json == "-") as console:
        return command.run(options, console)
