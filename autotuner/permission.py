"""Whether evaluators of a workflow may run: only the machine's owner can say so, and nobody has by default.

An evaluator is Python that runs with all rights of whoever started ComfyUI, and a workflow comes from anywhere. So the
permission stands where no workflow reaches: in the environment, or in a file that the host names.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import FileError, RecipeError

VARIABLE = "LORA_ALLOY_EVALUATORS"
FIELD = "evaluators"
_YES, _NO = ("1", "yes", "true", "on"), ("", "0", "no", "false", "off")


@dataclass(frozen=True)
class Permission:
    """What the owner allows.

    Attributes:
        is_for_all: every evaluator of every workflow.
        names: files and modules that may run in any case.
    """

    is_for_all: bool = False
    names: tuple[str, ...] = ()

    def allows(self, module_path: str) -> bool:
        """Whether a file or an importable module may run."""
        return self.is_for_all or any(_is_same(name, module_path) for name in self.names)


def is_allowed(module_path: str, settings: Path | None = None) -> bool:
    """Whether the owner allows an evaluator.

    Args:
        module_path: its file, or the module that it is in.
        settings: a JSON file of the owner's; a missing one allows nothing.

    Raises:
        FileError: the file of settings cannot be read.
    """
    return _of_environment(os.environ).allows(module_path) or _of_file(settings).allows(module_path)


def require_allowed(module_path: str, settings: Path | None = None) -> None:
    """Stop before any work where an evaluator is asked for and not allowed.

    Raises:
        RecipeError: it is not allowed; the message says how its owner allows it.
        FileError: the file of settings cannot be read.
    """
    if is_allowed(module_path, settings):
        return
    where = f', or write {{"{FIELD}": ["{module_path}"]}} into `{settings}`' if settings else ""
    raise RecipeError(
        f"The evaluator `{module_path}` is Python code, which would run with all your rights, and the owner of this"
        f" machine has not allowed that. If you trust it, set the environment variable {VARIABLE} to its path before"
        f" the start, or to 1 to allow the evaluators of every workflow{where}. Otherwise disconnect the evaluator."
    )


def _of_environment(environment: Mapping[str, str]) -> Permission:
    given = environment.get(VARIABLE, "").strip()
    if given.lower() in (*_YES, *_NO):
        return Permission(given.lower() in _YES)
    return Permission(names=tuple(name.strip() for name in given.split(os.pathsep) if name.strip()))


def _of_file(path: Path | None) -> Permission:
    if path is None:
        return Permission()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Permission()
    except OSError as problem:
        raise FileError(f"`{path}` cannot be read ({problem.strerror}); correct it or remove it.") from None
    except (ValueError, RecursionError):
        raise FileError(f"`{path}` is no JSON; correct it or remove it.") from None
    given = found.get(FIELD, False) if isinstance(found, Mapping) else None
    if isinstance(given, bool):
        return Permission(given)
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return Permission(names=tuple(given))
    raise FileError(
        f"`{path}` must be a JSON object whose `{FIELD}` is true, false, or a list of files and modules."
    )


def _is_same(name: str, module_path: str) -> bool:
    if name == module_path:
        return True
    try:
        return Path(name).resolve() == Path(module_path).resolve()
    except (OSError, ValueError, RuntimeError):
        return False
