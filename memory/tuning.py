"""Remembered tuning: any JSON value, by the stack, the recipe it starts from, and the tuner's settings."""

from collections.abc import Mapping
from math import copysign
from typing import Any

import torch

from ..cache.store import Store
from ..lora.stack import Stack
from ..merging.recipe import Recipe
from .results import result_key

TUNING = "tuning"


def recall_tuning(store: Store, keys: tuple[dict[str, Any], dict[str, Any]]) -> Any | None:
    """What was remembered under `tuning_keys`; that of other strengths in the mode `auto_ignore_strength` alone."""
    exact, loose = keys
    found = store.get_json(TUNING, exact)
    if store.mode == "clear_and_run":
        store.get_json(TUNING, loose)  # so that it goes, too
    if found is None and store.mode == "auto_ignore_strength":
        found = store.get_json(TUNING, loose)
        if found is not None:
            store.put_json(TUNING, exact, found)
    return found


def keep_tuning(store: Store, keys: tuple[dict[str, Any], dict[str, Any]], value: Any) -> None:
    """Remember a value of JSON's own kinds; a number that is not finite keeps it from being remembered."""
    try:
        for key in keys:
            store.put_json(TUNING, key, value)
    except ValueError as problem:
        store.note(f"The tuning is not remembered: {problem}.")


def tuning_keys(
    stack: Stack,
    recipe: Recipe,
    settings: Mapping[str, Any],
    base: dict[str, Any],
    device: torch.device | str = "cpu",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The key of a stack at its strengths, and of the same stack at any strengths of the same signs.

    Args:
        stack: resolved. Names and order are free: a value that counts LoRAs by place needs the order in `settings`.
        recipe: what the tuner starts from.
        settings: all else that its result depends on, in JSON's own kinds.
        base: the part of every key that stands for the program and the machine.
        device: where element-wise work is done.
    """
    exact = {**result_key(stack, recipe, base, device), "settings": dict(settings)}
    entries = [
        {**entry, "strength": _sign(entry["strength"]), "clip_strength": _sign(entry["clip_strength"])}
        for entry in exact["entries"]
    ]
    return exact, {**exact, "entries": entries, "any_strengths": True}


def _sign(strength: float) -> float:
    return copysign(1.0, strength) if strength else 0.0
