"""What files are and what merging them takes, as functions of their paths."""

from collections.abc import Sequence
from pathlib import Path

from ..core.collecting import uncollected
from .base import open_base
from .entries import Model
from .estimate import Estimate, estimate_merge
from .file import open_lora
from .inspection import Inspection, inspect_file


def inspect(
    paths: Path | str | Sequence[Path | str], *, model: Model | Path | str | None = None
) -> list[Inspection]:
    """What files are, from their headers: format, family, trainer, ranks, alphas, targets, purpose, problems.

    Args:
        paths: the files.
        model: also say what of each file this model has; only that reads the files' values.

    Raises:
        FileError: a file is missing, damaged, or not a LoRA; ask for files one by one to go on after that.
    """
    given = [paths] if isinstance(paths, str | Path) else paths
    known = open_base(model) if isinstance(model, str | Path) else model
    with uncollected():
        return [inspect_file(path, model=known) for path in given]


def estimate(paths: Path | str | Sequence[Path | str]) -> Estimate:
    """What a merge of files would take in memory and time, from their headers.

    Raises:
        FileError: a file is missing, damaged, or not a LoRA.
    """
    given = [paths] if isinstance(paths, str | Path) else paths
    return estimate_merge([open_lora(path) for path in given])
