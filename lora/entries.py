"""The words a stack is told in: entries, what they bring to a target, and what a host knows of the model."""

from collections.abc import Mapping
from dataclasses import dataclass

from .factors import LowRank
from .file import LoraFile
from .formats import Module
from .keys import KeyMap
from .target import Part, Target


@dataclass(frozen=True)
class Entry:
    """One LoRA with its strengths.

    Attributes:
        file: the opened LoRA.
        strength: for the model's targets; may be negative.
        clip_strength: for the text encoders' targets; None means as `strength`.
        preserve: keep this LoRA out of the blend and add it on top, exactly.
    """

    file: LoraFile
    strength: float = 1.0
    clip_strength: float | None = None
    preserve: bool = False

    @property
    def strength_on_clip(self) -> float:
        """The strength that applies to the text encoders."""
        return self.strength if self.clip_strength is None else self.clip_strength

    def strength_on(self, target: Target) -> float:
        """The strength that applies to one target."""
        return self.strength_on_clip if target.is_clip else self.strength


@dataclass(frozen=True)
class Contribution:
    """What one entry brings to one target: a module's delta, or a part of it."""

    entry: int
    module: Module
    swap_halves: bool = False
    part: Part | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the delta it brings."""
        if self.part is None:
            return self.module.shape
        sizes = list(self.module.shape)
        sizes[self.part.axis] = self.part.length
        return tuple(sizes)

    def load(self, file: LoraFile) -> LowRank:
        """Its delta, in factors, from the entry's file."""
        delta = file.load(self.module)
        if self.swap_halves:
            delta = delta.halves_swapped()
        return delta if self.part is None else delta.part(self.part)


@dataclass(frozen=True)
class Group:
    """One target with all that the stack brings to it, in an order that does not depend on the stack's."""

    target: Target
    shape: tuple[int, ...]
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True)
class Model:
    """What a host knows of the model that the stack is for.

    Attributes:
        known: spellings of module names → routes.
        shapes: the shape of each base weight, by the name a target has.
        has_clip: whether its text encoders are at hand.
    """

    known: KeyMap
    shapes: Mapping[str, tuple[int, ...]]
    has_clip: bool = True
