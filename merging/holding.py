"""Structural LoRAs are held out of the blend and added on top, exactly, like preserved ones (`design.md` §4).

Blended, a distillation is turned down with all else, and the few steps that it allows give noise.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..analysis.extraction import extracted
from ..lora.stack import Entry, Stack
from ..lora.structural import Structural, structural_type
from .recipe import AUTO, Recipe

TURN_OFF = "`hold_structural` (`--no-hold-structural`) turns that off"


def held_out(stack: Stack, recipe: Recipe) -> Stack:
    """The stack with its structural LoRAs preserved, each with the reason; as it is if there is nothing to hold.

    One LoRA alone is what it is, and where a method is named and all are structural, they are what is to be merged.
    Entries that were decided on already, because a saved file says so, are not looked at again.

    Args:
        stack: with all entries that take part.
        recipe: `hold_structural` turns this off.
    """
    if not recipe.hold_structural:
        return stack
    reasons = [_reason(entry) for entry in stack.entries]
    is_blended = [
        not (entry.preserve or reason) for entry, reason in zip(stack.entries, reasons, strict=True)
    ]
    is_decided = any(entry.held is not None for entry in stack.entries)
    if len(stack.entries) == 1 and not is_decided:
        return stack
    if not any(is_blended) and recipe.method != AUTO and not is_decided:
        return stack
    entries = tuple(
        replace(entry, preserve=True, held=reason) if reason and not entry.preserve else entry
        for entry, reason in zip(stack.entries, reasons, strict=True)
    )
    return replace(stack, entries=entries)


def _reason(entry: Entry) -> str:
    """Why an entry is held out; empty if it is not."""
    if entry.preserve:
        return ""
    if entry.held is not None:
        return entry.held
    found = structural_type(entry.file)
    if found is None:
        return ""
    if not found.is_held and found.is_plain and (evidence := extracted(entry.file)):
        found = found.surer(evidence)
    return _told(found) if found.is_held else ""


def _told(found: Structural) -> str:
    return f"{found.title} LoRA, confidence {found.confidence}: {'; '.join(found.evidence)}"


def held_notes(entries: Sequence[Entry]) -> list[str]:
    """A sentence for every entry that is held out unasked."""
    return [
        f"`{entry.file.label}` is held out of the blend and added on top, exactly, at its strength: it looks like a"
        f" structural one ({entry.held}). {TURN_OFF}."
        for entry in entries
        if entry.preserve and entry.held
    ]
