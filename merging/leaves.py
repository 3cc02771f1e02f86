"""What is left of the LoRAs that a formula merges first: they are no entries of the outer stack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from ..analysis.blocks import block_of
from ..analysis.similarity import dot
from ..core.threads import one_thread
from ..lora.factors import Delta
from ..lora.stack import Group, Stack
from ..lora.target import Target
from .deferred import Deferred
from .inner import InnerFile
from .patch import Patch
from .retention import shares_of


@dataclass(frozen=True)
class Leaf:
    """One LoRA inside an inner result.

    Attributes:
        label: of its file.
        inside: the inner result that it is an entry of, such as `(1+2)`.
        strength: on the model, times the weights of all that it is inside of.
        clip_strength: on the text encoders, likewise.
        retention: the share of it that is left, relative to these strengths.
        blocks: the same by block.
    """

    label: str
    inside: str
    strength: float
    clip_strength: float
    retention: float
    blocks: dict[str, float]


@dataclass(frozen=True)
class _Found:
    """Sums for one LoRA: by block, `w⟨M, Δ⟩` and `w²‖Δ‖²`."""

    label: str
    inside: str
    strengths: tuple[float, float]
    blocks: dict[str, list[float]] = field(default_factory=dict)


_Key: TypeAlias = tuple[str, int, tuple[float, float]]  # where it is, and how strong


def leaves_of(stack: Stack, patches: Sequence[Patch]) -> tuple[Leaf, ...]:
    """The LoRAs inside the inner results of a stack; empty without a formula. Reads their deltas again.

    Args:
        stack: the outermost.
        patches: its result, in the order of its groups.

    Raises:
        FileError: a file cannot be read, or somebody wrote into one meanwhile.
    """
    inner = [entry.file for entry in stack.entries if isinstance(entry.file, InnerFile)]
    if not inner:
        return ()
    found: dict[_Key, _Found] = {}
    with torch.no_grad(), one_thread():
        for group, patch in zip(stack.groups, patches, strict=True):
            # A result that is not kept is made once for all of them.
            merged = patch.delta.times(1.0) if isinstance(patch.delta, Deferred) else patch.delta
            block = block_of(group.target)
            for one, delta, strength in _deltas(stack, group, group.target, "", (1.0, 1.0), found):
                sums = one.blocks.setdefault(block, [0.0, 0.0])
                sums[0] += dot(merged, delta) * strength
                sums[1] += dot(delta, delta) * strength * strength
    for file in inner:
        file.stack.release()
    insides = list(dict.fromkeys(inside for inside, _, _ in found))
    made = []
    for _, one in sorted(found.items(), key=lambda item: (insides.index(item[0][0]), item[0][1])):
        left = shares_of(one.blocks)
        made.append(Leaf(one.label, one.inside, *one.strengths, left.overall, left.blocks))
    return tuple(made)


def _deltas(
    stack: Stack,
    group: Group,
    target: Target,
    inside: str,
    weights: tuple[float, float],
    found: dict[_Key, _Found],
) -> Iterator[tuple[_Found, Delta, float]]:
    """Every LoRA inside the inner results on one target, its delta there, and its strength."""
    for one in group.contributions:
        entry = stack.entries[one.entry]
        strengths = (weights[0] * entry.strength, weights[1] * entry.strength_on_clip)
        strength = strengths[target.is_clip]
        if isinstance(entry.file, InnerFile):
            below = entry.file.group_of(one.module)
            parts = _deltas(entry.file.stack, below, target, entry.file.label, strengths, found)
            for leaf, delta, product in parts:
                yield leaf, one.placed(delta), product
        elif inside and strength != 0.0:
            key = (inside, one.entry, strengths)
            leaf = found.setdefault(key, _Found(entry.file.label, inside, strengths))
            yield leaf, stack.load_one(one), strength
