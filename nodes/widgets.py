"""The widgets that both stack nodes have."""

from typing import Any

from .types import CONFLICT_MODES, KEY_FILTERS, STRENGTH_LIMIT, STRENGTH_STEP

Widget = tuple[Any, dict[str, Any]]


def strength(tooltip: str) -> Widget:
    """A strength: 1.0, between minus ten and ten."""
    limits = {"min": -STRENGTH_LIMIT, "max": STRENGTH_LIMIT, "step": STRENGTH_STEP}
    return ("FLOAT", {"default": 1.0, **limits, "tooltip": tooltip})


def conflict_mode() -> Widget:
    """Which values of a LoRA take part, by their agreement with the rest of the stack."""
    tooltip = (
        "Which of this LoRA's values take part: all of them, only those whose sign is that of the stack's"
        " majority (low_conflict), or only those whose sign is not (high_conflict)."
    )
    return (list(CONFLICT_MODES), {"default": "all", "tooltip": tooltip})


def key_filter() -> Widget:
    """Which targets of a LoRA take part."""
    tooltip = (
        "Which weights this LoRA may change: all it knows, only those that another LoRA of the stack changes"
        " too (shared_only), only those that no other one changes (unique_only), only the audio weights of a"
        " model with sound (audio_only), or all but those (no_audio)."
    )
    return (list(KEY_FILTERS), {"default": "all", "tooltip": tooltip})


def preserve(tooltip: str) -> Widget:
    """Whether a LoRA stays out of the blend and is added whole."""
    return (
        "BOOLEAN",
        {"default": False, "label_on": "preserved", "label_off": "blended", "tooltip": tooltip},
    )
