"""Files of tuning results: `.tuner` or `.json`, plain JSON (`spec/nodes.md` §2.4)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import FileError, SaveError
from ..core.wholefile import write_whole
from .tuner_data import candidates_of

ENDINGS = (".tuner", ".json")
LARGEST = 64 << 20  # bytes of a file that is read at all


def write_tuner_file(path: Path, data: Mapping[str, Any], notes: Mapping[str, str] | None = None) -> None:
    """Write a tuning result, all of it or nothing.

    Args:
        path: with its ending.
        data: TUNER_DATA.
        notes: `prompt` and `description`; what is blank is left out.

    Raises:
        SaveError: the place cannot be written, or the data hold what JSON cannot.
    """
    told = {name: text.strip() for name, text in (notes or {}).items() if text.strip()}
    try:
        text = json.dumps({**data, **told}, indent=2, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise SaveError(f"The tuning result cannot be saved: {problem}. Tune again.") from None
    write_whole(path, [f"{text}\n".encode("utf-8", "replace")])


def read_tuner_file(path: Path) -> dict[str, Any]:
    """The tuning result of a file, of this program or another.

    Raises:
        FileError: it cannot be read, or is no tuning result.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise FileError(f"`{path}` has more than {LARGEST >> 20} MB, so it is no tuning result.")
        found = json.loads(path.read_bytes())
    except OSError as problem:
        raise FileError(f"`{path}` cannot be read ({problem.strerror}).") from None
    except (ValueError, RecursionError) as problem:
        raise FileError(
            f"`{path}` is not JSON: {str(problem)[:200]}. Save the tuning result again."
        ) from None
    if not isinstance(found, dict) or not candidates_of(found):
        raise FileError(f"`{path}` is JSON, but no tuning result: it has no candidates in `top_n`.")
    return found
