"""Results for machines: JSON on stdout or in a file, whole or not at all."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from math import isfinite
from pathlib import Path

from .. import __version__
from ..core.wholefile import write_whole
from .console import Console


def json_path(given: str | None) -> list[Path]:
    """The file that `--json` names, if it names one."""
    return [] if given is None or given == "-" else [Path(given)]


def write_json(given: str | None, command: str, result: Mapping[str, object], console: Console) -> None:
    """Write a result where `--json` says, if it was given.

    Raises:
        SaveError: the place cannot be written.
    """
    if given is None:
        return
    told = {"tool": f"LoRA Alloy {__version__}", "command": command, **result}
    # ASCII only: every pipe, shell and encoding lets it through.
    text = json.dumps(_plain(told), indent=2, allow_nan=False) + "\n"
    if given == "-":
        console.write(text)
    else:
        write_text(Path(given), text)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        SaveError: the place cannot be written; what stood there before still does.
    """
    write_whole(path, [text.encode("utf-8", "backslashreplace")])


def _plain(value: object) -> object:
    """`value` in JSON's own kinds; a number that is not finite has none, and becomes null."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
