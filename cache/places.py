"""Where things are remembered, and how much of it, if nobody says otherwise."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import RecipeError
from .store import LIMIT

FOLDER, GIGABYTES = "LORA_ALLOY_CACHE", "LORA_ALLOY_CACHE_GB"


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that `LORA_ALLOY_CACHE` names, or the platform's for what can be made again."""
    if named := environ.get(FOLDER):
        return Path(named)
    if sys.platform == "win32":
        above = environ.get("LOCALAPPDATA")
        return (Path(above) if above else Path.home() / "AppData" / "Local") / "lora-alloy" / "memory"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lora-alloy" / "memory"
    above = environ.get("XDG_CACHE_HOME")
    return (Path(above) if above else Path.home() / ".cache") / "lora-alloy" / "memory"


def default_limit(environ: Mapping[str, str] = os.environ) -> int:
    """The bytes that `LORA_ALLOY_CACHE_GB` allows, or 4 GiB.

    Raises:
        RecipeError: it is not a number of gigabytes.
    """
    named = environ.get(GIGABYTES)
    if not named:
        return LIMIT
    try:
        gigabytes = float(named)
    except ValueError:
        gigabytes = -1.0
    if not 0 <= gigabytes <= 1e6:
        raise RecipeError(f"`{GIGABYTES}` is `{named[:40]}`; it must be a number of gigabytes, such as 4.")
    return int(gigabytes * 2**30)
