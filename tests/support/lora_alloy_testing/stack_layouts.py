"""Stored widget arrays of the dynamic stack, one per layout there ever was, and what each must become."""

from collections.abc import Sequence
from typing import Any

__all__ = ["FIELDS", "LAYOUTS", "NAMES", "current"]

FIELDS = (
    "enabled",
    "lora_name",
    "lora_name_text",
    "strength",
    "model_strength",
    "clip_strength",
    "conflict_mode",
    "key_filter",
    "preserve",
)
FRESH = (True, "None", "None", 1, 1, 1, "all", "all", False)

# Today's widgets, in order.
NAMES = (
    "settings_visibility",
    "input_mode",
    "lora_count",
    *(f"{field}_{number}" for number in range(1, 11) for field in FIELDS),
    "base_model_filter",
)

FOUR = ("lora_name", "strength", "model_strength", "clip_strength")
FIVE = (*FOUR, "conflict_mode")
SIX = ("lora_name", "lora_name_text", "strength", "model_strength", "clip_strength", "conflict_mode")
SEVEN = (*SIX, "key_filter")
EIGHT = ("enabled", *SEVEN)


def slot_values(number: int) -> dict[str, Any]:
    """What slot `number` held: no default among it, and no two slots alike."""
    n = number / 100
    return {
        "enabled": number % 2 == 0,
        "lora_name": f"style/lora{number}.safetensors",
        "lora_name_text": f"text {number}",
        "strength": 2 + n,
        "model_strength": 3 + n,
        "clip_strength": 4 + n,
        "conflict_mode": "low_conflict",
        "key_filter": "unique_only",
        "preserve": number % 3 == 0,
    }


def stored(head: Sequence[Any], fields: Sequence[str], tail: Sequence[Any]) -> list[Any]:
    """An array as an older version wrote it."""
    slots = [slot_values(number)[field] for number in range(1, 11) for field in fields]
    return [*head, *slots, *tail]


def current(mode: str, fields: Sequence[str], model: str = "Flux.1 D", **fixed: Any) -> list[Any]:
    """Today's array, where the file had only `fields`; `fixed` stands for the defaults of the others."""
    values: list[Any] = ["advanced", mode, 4]
    for number in range(1, 11):
        for field, fresh in zip(FIELDS, FRESH, strict=True):
            values.append(slot_values(number)[field] if field in fields else fixed.get(field, fresh))
    return [*values, model]


_OLD = ["advanced", 4]
_NEW = ["advanced", "text", 4]
_FILTER = ["Flux.1 D"]
_PRESERVED = [slot_values(number)["preserve"] for number in range(1, 11)]

# Length → the stored array, today's array.
LAYOUTS = {
    42: (stored(_OLD, FOUR, []), current("dropdown", FOUR, "All")),
    52: (stored(_OLD, FIVE, []), current("dropdown", FIVE, "All")),
    53: (stored(_OLD, FIVE, _FILTER), current("dropdown", FIVE)),
    63: (stored(_NEW, SIX, []), current("text", SIX, "All")),
    64: (stored(_NEW, SIX, _FILTER), current("text", SIX)),
    65: (stored([*_NEW, "shared_only"], SIX, _FILTER), current("text", SIX, key_filter="shared_only")),
    74: (stored(_NEW, SEVEN, _FILTER), current("text", SEVEN)),
    84: (stored(_NEW, EIGHT, _FILTER), current("text", EIGHT)),
    94: (stored(_NEW, EIGHT, [*_FILTER, *_PRESERVED]), current("text", FIELDS)),
    104: (stored(_NEW, FIELDS, [*_FILTER, *["auto"] * 10]), current("text", FIELDS)),
}
