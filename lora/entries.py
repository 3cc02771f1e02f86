"""The words a stack is told in: entries, what they bring to a target, and what a host knows of the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..core.errors import StackError
from ..core.params import unknown
from .factors import Delta, padded
from .file import LoraFile
from .formats import Module
from .keys import KeyMap
from .target import Part, Target

CONFLICT_MODES = ("all", "low_conflict", "high_conflict")
KEY_FILTERS = ("all", "shared_only", "unique_only", "audio_only", "no_audio")


def no_base(weight: str) -> Tensor | None:
    """The base weight where there is no base model."""
    return None


@dataclass(frozen=True)
class Entry:
    """One LoRA with its strengths.

    Attributes:
        file: the opened LoRA.
        strength: for the model's targets; may be negative.
        clip_strength: for the text encoders' targets; None means as `strength`.
        preserve: keep this LoRA out of the blend and add it on top, exactly.
        conflict_mode: where it acts: `all`, `low_conflict` where the stack agrees with it, `high_conflict` where it
            does not.
        key_filter: on which targets it acts: `all`, `shared_only`, `unique_only`, `audio_only`, `no_audio`.
        held: why it is held out of the blend unasked, empty if it is not; None if that is to be decided.
    """

    file: LoraFile
    strength: float = 1.0
    clip_strength: float | None = None
    preserve: bool = False
    conflict_mode: str = "all"
    key_filter: str = "all"
    held: str | None = None

    def __post_init__(self) -> None:
        for what, word, known in (
            ("conflict mode", self.conflict_mode, CONFLICT_MODES),
            ("key filter", self.key_filter, KEY_FILTERS),
        ):
            if word not in known:
                raise StackError(unknown(what, word, dict.fromkeys(known)))

    @property
    def strength_on_clip(self) -> float:
        """The strength that applies to the text encoders."""
        return self.strength if self.clip_strength is None else self.clip_strength

    def strength_on(self, target: Target) -> float:
        """The strength that applies to one target."""
        return self.strength_on_clip if target.is_clip else self.strength


@dataclass(frozen=True)
class Contribution:
    """What one entry brings to one target: a module's delta, or a part of it.

    Attributes:
        entry: which entry.
        module: which of its modules; its shape is known.
        home: the target of the whole module.
        swap_halves: exchange the row halves of its delta.
        part: the rows or columns to take of its delta, None for all.
        wider: the shape of the weight that its delta is filled up to with zeros, None for its own.
    """

    entry: int
    module: Module
    home: Target
    swap_halves: bool = False
    part: Part | None = None
    wider: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the delta it brings."""
        if self.wider is not None:
            return self.wider
        sizes = list(self.module.shape or ())
        if self.part is not None:
            sizes[self.part.axis] = self.part.length
        return tuple(sizes)

    def load(self, file: LoraFile, model: "Model | None" = None) -> Delta:
        """Its delta, from the entry's file; a model gives the base weight where that is needed.

        Raises:
            FileError: the tensors cannot be read.
            StackError: the base weight is needed and not to be had.
        """
        base = self._base(model) if self.module.base_reason else None
        return self.placed(file.load(self.module, base))

    def placed(self, delta: Delta) -> Delta:
        """A delta of its whole module as its target has it."""
        if self.swap_halves:
            delta = delta.halves_swapped()
        if self.part is not None:
            delta = delta.part(self.part)
        return delta if self.wider is None else padded(delta, self.wider)

    def _base(self, model: "Model | None") -> Tensor:
        weight = model.base(self.home.weight) if model else None
        if weight is None:
            raise StackError(
                f"`{self.module.name}` comes with {self.module.base_reason}, and the base weight {self.home.weight}"
                " cannot be read. Give the base model, or take that LoRA out of the stack."
            )
        weight = weight.float()
        part = self.home.part
        base = weight if part is None else weight.narrow(part.axis, part.start, part.length)
        shape = self.module.shape
        assert shape is not None
        if not _is_like(tuple(base.shape), shape):
            raise StackError(
                f"`{self.module.name}` is for a weight of {shape}, and the base weight {self.home} has"
                f" {tuple(base.shape)}; it is for another model."
            )
        # The file's halves stand in the other order, so it must see the base in that order too.
        return torch.cat(base.chunk(2)[::-1]) if self.swap_halves else base


def _is_like(base: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a base weight can bear a delta of `shape`, which may be a flat convolution's."""
    if not base or len(base) < min(len(shape), 2):
        return False
    return (base[0], prod(base[1:])) == (shape[0], prod(shape[1:]))


@dataclass(frozen=True)
class Group:
    """One target with all that the stack brings to it, in an order that does not depend on the stack's.

    Attributes:
        target: the target.
        shape: of the merged delta.
        contributions: what the stack brings.
        is_wider: whether the base weight, where it is smaller, is to be filled up with zeros.
    """

    target: Target
    shape: tuple[int, ...]
    contributions: tuple[Contribution, ...]
    is_wider: bool = False


@dataclass(frozen=True)
class Model:
    """What a host knows of the model that the stack is for.

    Attributes:
        known: spellings of module names → routes.
        shapes: the shape of each base weight, by the name a target has.
        has_clip: whether its text encoders are at hand.
        base: the base weight of a target's name, its own shape, float32; None where it cannot be read.
        label: what the base model is called in what is written about a merge; empty where nobody knows.
    """

    known: KeyMap
    shapes: Mapping[str, tuple[int, ...]]
    has_clip: bool = True
    base: Callable[[str], Tensor | None] = no_base
    label: str = ""
