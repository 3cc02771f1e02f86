"""Pairs of LoRAs over all targets they share: cosine, sign conflict beyond chance, opposition."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from ..lora.stack import Stack
from .conflict import baseline
from .similarity import Measured, cosines, strengths_on

OPPOSED = -0.1
ALIKE = 0.5
SHOWN = 10


@dataclass(frozen=True)
class Pair:
    """Two LoRAs of a stack, with the signs of their strengths.

    Attributes:
        first: label of one.
        second: label of the other.
        shared_count: targets that both change.
        cosine: of the two over the targets they share.
        conflict: share of entries with opposite signs, a mean over targets weighted by their size.
        expected: the conflict that chance gives deltas of these cosines.
    """

    first: str
    second: str
    shared_count: int
    cosine: float
    conflict: float
    expected: float

    @property
    def excess(self) -> float:
        """Conflict beyond what chance gives."""
        return self.conflict - self.expected

    @property
    def is_opposed(self) -> bool:
        """Whether the two undo each other."""
        return self.cosine < OPPOSED

    @property
    def is_alike(self) -> bool:
        """Whether the two do much the same."""
        return self.cosine > ALIKE

    def sentence(self) -> str:
        """The pair in words."""
        if not self.shared_count:
            return "no target in common"
        relation = "opposed, they undo each other" if self.is_opposed else "unrelated"
        if self.is_alike:
            relation = "alike"
        elif self.cosine > -OPPOSED:
            relation = "related"
        # The 0.0 takes the sign off a zero.
        cosine = round(self.cosine, 2) + 0.0
        return (
            f"cosine {cosine:+.2f} ({relation}); signs disagree on {self.conflict:.0%}, chance gives"
            f" {self.expected:.0%}; {self.shared_count} shared targets"
        )


def pairs(stack: Stack, measured: Sequence[Measured]) -> list[Pair]:
    """Every pair of entries of a stack, in the order of `itertools.combinations`."""
    sums = _sums(stack, measured)
    labels = [entry.file.label for entry in stack.entries]
    found = []
    for first, second in combinations(range(len(labels)), 2):
        dot, energy, other_energy, conflict, expected, size, count = sums[:, first, second].tolist()
        bottom = (energy * other_energy) ** 0.5
        found.append(
            Pair(
                labels[first],
                labels[second],
                int(count),
                min(max(dot / bottom, -1.0), 1.0) if bottom > 0 else 0.0,
                conflict / size if size else 0.0,
                expected / size if size else 0.0,
            )
        )
    return found


def _sums(stack: Stack, measured: Sequence[Measured]) -> Tensor:
    """`(7, n, n)`: dot product, energy of either, conflict, expected conflict, size, count; over targets."""
    count = len(stack.entries)
    sums = torch.zeros(7, count, count, dtype=torch.float64)
    for one in measured:
        strengths = strengths_on(stack, one)
        weights = strengths[:, None] * strengths
        signs = torch.sign(weights)
        energy = (one.gram.diagonal() * strengths.square())[:, None].expand_as(weights)
        conflict = torch.zeros_like(weights) if one.conflict is None else one.conflict
        # Where two change different entries of a weight, there are no signs to compare.
        compared = torch.where((conflict != 0) | (one.gram != 0), float(one.size), 0.0)
        # A negative strength turns all signs of one side, so what agreed then disagrees.
        conflict = torch.where(signs > 0, conflict, 1 - conflict)
        here = torch.stack(
            [
                one.gram * weights,
                energy,
                energy.T,
                conflict * compared,
                baseline(cosines(one.gram) * signs) * compared,
                compared,
                torch.ones_like(weights),
            ]
        )
        at = torch.tensor(one.entries)
        # A delta of zeros, or one without strength on this branch, has no pairs.
        sums[:, at[:, None], at] += torch.where((energy > 0) & (energy.T > 0), here, 0.0)
    return sums


def pair_lines(found: Sequence[Pair]) -> list[str]:
    """Pairs in words, one a line; of many, those of the largest cosines."""
    shown = sorted(found, key=lambda pair: -abs(pair.cosine))[:SHOWN] if len(found) > SHOWN else found
    lines = [f"{pair.first} and {pair.second}: {pair.sentence()}" for pair in shown]
    if len(found) > len(shown):
        lines.append(f"The other {len(found) - len(shown)} pairs have smaller cosines.")
    return lines
