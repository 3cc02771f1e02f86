"""Module names: from a LoRA file to targets, and back. One file a model family, first to recognise wins."""

from .detection import candidates, detect
from .names import Family, KeyMap
from .reading import is_bare_parameter, is_text, loose_name, resolve
from .table import FAMILIES, NAMINGS, family, key_map, parts, rows, spell, unflattened

__all__ = [
    "FAMILIES",
    "NAMINGS",
    "Family",
    "KeyMap",
    "candidates",
    "detect",
    "family",
    "is_bare_parameter",
    "is_text",
    "key_map",
    "loose_name",
    "parts",
    "resolve",
    "rows",
    "spell",
    "unflattened",
]
