"""The command line: one command a file, and its row here."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from .. import __version__
from ..core.errors import AlloyError, SaveError
from ..core.params import unknown
from .console import printable, program, put
from .stopping import interruptible

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "demo": "make three small LoRAs, merge them, prove the result: start here",
        "inspect": "what each file is: format, family, trainer, ranks, alpha, problems",
        "analyze": "how the LoRAs of a stack relate: cosines, conflicts, overlap, block by block",
        "merge": "merge a stack into one LoRA, and prove it",
        "resize": "a LoRA of a smaller rank, error or file size, and what that costs",
        "convert": "a LoRA of any format as plain LoRA in another naming",
        "verify": "prove a merged file against the LoRAs it was made of",
        "memory": "what is remembered between runs, and how to forget it",
        "methods": "list merge methods, presets, and what a recipe may hold",
    }
)

USAGE = """\
usage: {program} COMMAND ...

{commands}

`{program} COMMAND --help` explains one. A LoRA with its strengths is written FILE[:STRENGTH[:CLIP]].
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words behind the program's name; None takes them from the process.

    Returns:
        0 done, 1 a problem that a sentence on stderr explains, 130 interrupted or told to end.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with interruptible():
            return _run(words)
    except AlloyError as problem:
        return _ended(f"{printable(str(problem))}\n", 1)
    except KeyboardInterrupt:
        return _ended("Stopped. Nothing was left half-written.\n", 130)


def _ended(words: str, code: int) -> int:
    with suppress(SaveError):  # where nobody listens, the code must do
        put(sys.stderr, words)
    return code


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        listed = "\n".join(f"  {name:<9} {what}" for name, what in COMMANDS.items())
        put(sys.stdout if words else sys.stderr, USAGE.format(program=program(), commands=listed))
        return 0 if words else 1
    if words[0] in ("--version", "-V"):
        put(sys.stdout, f"LoRA Alloy {__version__}\n")
        return 0
    if words[0] not in COMMANDS:
        raise AlloyError(unknown("command", words[0], COMMANDS))
    # Only now, since this brings in torch: help is instant, and Ctrl-C is already ours.
    from .running import run

    return run(words[0], words[1:])
