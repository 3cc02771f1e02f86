"""Pairs of LoRAs over all targets they share: cosine, sign conflict beyond chance, opposition."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from ..lora.stack import Stack
from .conflict import baseline
from .similarity import Measured, cosines

OPPOSED = -0.1
ALIKE = 0.5


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

    def sentence(self) -> str:
        """The pair in words."""
        if not self.shared_count:
            return "no target in common"
        relation = "opposed, they undo each other" if self.is_opposed else "unrelated"
        if self.cosine > ALIKE:
            relation = "alike"
        elif self.cosine > -OPPOSED:
            relation = "related"
        return (
            f"cosine {self.cosine:+.2f} ({relation}); signs disagree on {self.conflict:.0%}, chance gives"
            f" {self.expected:.0%}; {self.shared_count} shared targets"
        )


def pairs(stack: Stack, measured: Sequence[Measured]) -> list[Pair]:
    """Every pair of entries of a stack, in the stack's order."""
    found = []
    for first, second in combinations(range(len(stack.entries)), 2):
        found.append(_pair(stack, measured, first, second))
    return found


def _pair(stack: Stack, measured: Sequence[Measured], first: int, second: int) -> Pair:
    dot, one_energy, other_energy = 0.0, 0.0, 0.0
    conflict, expected, size, count = 0.0, 0.0, 0, 0
    for one in measured:
        if first not in one.entries or second not in one.entries:
            continue
        a, b = one.entries.index(first), one.entries.index(second)
        left, right = (stack.entries[index].strength_on(one.target) for index in (first, second))
        energies = float(one.gram[a, a]) * left * left, float(one.gram[b, b]) * right * right
        if min(energies) <= 0.0:
            continue
        count += 1
        dot += float(one.gram[a, b]) * left * right
        one_energy += energies[0]
        other_energy += energies[1]
        share = float(one.conflict[a, b]) if one.conflict is not None else 0.0
        if share == 0.0 and float(one.gram[a, b]) == 0.0:
            continue  # They change different entries of this weight: there are no signs to compare.
        sign = 1.0 if left * right > 0 else -1.0
        angle = torch.tensor(sign * float(cosines(one.gram)[a, b]), dtype=torch.float64)
        conflict += one.size * (share if sign > 0 else 1 - share)
        expected += one.size * float(baseline(angle))
        size += one.size
    labels = (stack.entries[first].file.label, stack.entries[second].file.label)
    cosine = dot / (one_energy**0.5 * other_energy**0.5) if count else 0.0
    return Pair(*labels, count, cosine, conflict / max(size, 1), expected / max(size, 1))
