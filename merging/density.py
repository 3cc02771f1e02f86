"""The density of TIES' trim where nobody names one: from how a stack's deltas spread (`spec/engine.md` §6.5).

Departure: each LoRA is judged by its own largest value, where pooled samples let the strongest LoRA decide for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.rng import spread
from ..lora.factors import Delta
from ..lora.keys import Family

ROWS, COLUMNS = 64, 512
LANGUAGE = ("qwen_image",)
UNETS = ("sd15", "sd2", "sdxl", "cascade")


@dataclass(frozen=True)
class Spread:
    """What counts as noise, relative to the largest value, and the range of the density."""

    noise: float
    least: float
    most: float


PRESETS = {
    "sd_unet": Spread(0.10, 0.10, 0.90),
    "dit": Spread(0.05, 0.40, 0.95),
    "llm": Spread(0.15, 0.10, 0.80),
}


def architecture_of(family: Family | None) -> str:
    """The preset of a family: UNets, those with a language model's blocks, and all other transformers."""
    if family is None or family.key in UNETS:
        return "sd_unet"
    return "llm" if family.key in LANGUAGE else "dit"


def guessed_density(deltas: Sequence[Delta], architecture: str, family: Family | None, name: str) -> float:
    """The mean share of values above the noise, over the LoRAs, within the preset's range.

    Args:
        deltas: of one target, none zero.
        architecture: a preset, or `auto` for that of the family.
        family: of the stack.
        name: the target's; it decides which block is looked at.
    """
    preset = PRESETS[architecture_of(family) if architecture == "auto" else architecture]
    rows = spread(ROWS, deltas[0].shape[0], name)
    columns = spread(COLUMNS, deltas[0].numel // deltas[0].shape[0], name)
    shares = []
    for delta in deltas:
        values = delta.block(rows, columns).abs()
        largest = float(values.max())
        if largest > 0:
            shares.append(float((values > preset.noise * largest).float().mean()))
    if not shares:
        return 0.5
    # Whole per cent: the plan shows it, and the last bits of a mean say nothing.
    return round(min(max(sum(shares) / len(shares), preset.least), preset.most), 2)
