"""Which method a target takes, and why (`docs/quality.md`; seed, Merge Algorithms; `spec/engine.md` §6).

Unrelated LoRAs disagree on half of all signs by chance, so a raw share of conflict decides nothing: what counts is
the share beyond chance, and whether the LoRAs point against each other. A target's own numbers are mixed with those
of its block, so that neighbours do not flip between methods by noise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..analysis.blocks import block_of
from ..analysis.conflict import baseline
from ..analysis.similarity import Measured, cosines, strengths_on
from ..lora.stack import Stack
from ..lora.target import Target
from .recipe import AUTO, Recipe

OPPOSED = -0.1  # mean cosine from which they undo each other
TORN = 0.25  # the seed's share of sign conflict, taken beyond chance
ALIKE = 0.7  # the seed's cosine from which consensus is for
SUM, AVERAGE = "weighted_sum", "weighted_average"


@dataclass(frozen=True)
class Relation:
    """How the LoRAs of a blend relate on one target, with the signs of their strengths.

    Attributes:
        count: how many they are.
        cosine: mean over the pairs.
        excess: sign conflict beyond chance, mean over the pairs; 0 if it was not sampled.
        energy: of all their deltas at strength 1: the weight of this target in its block.
    """

    count: int
    cosine: float
    excess: float
    energy: float


def taking_part(stack: Stack, one: Measured) -> Tensor:
    """Which of a target's entries blend: not preserved ones, nor those that add nothing here; int64 places."""
    strengths = strengths_on(stack, one)
    is_preserved = torch.tensor([stack.entries[index].preserve for index in one.entries])
    # A delta of zeros, or a strength of zero on this branch, takes no part: it must not thin out the others.
    return torch.nonzero(~is_preserved & (strengths != 0) & (one.gram.diagonal() > 0)).flatten()


def relation(stack: Stack, one: Measured) -> Relation:
    """How the LoRAs that blend on a target relate."""
    places = taking_part(stack, one)
    count = len(places)
    gram = one.gram[places][:, places]
    energy = float(gram.diagonal().sum())
    if count < 2:
        return Relation(count, 1.0, 0.0, energy)
    signs = torch.sign(strengths_on(stack, one)[places])
    turned = signs[:, None] * signs
    between = cosines(gram) * turned
    excess = 0.0
    if one.conflict is not None:
        conflict = one.conflict[places][:, places]
        conflict = torch.where((turned < 0) & (conflict > 0), 1 - conflict, conflict)
        excess = _mean((conflict - baseline(between)).clamp(min=0))
    return Relation(count, _mean(between), excess, energy)


def _mean(between: Tensor) -> float:
    count = len(between)
    return float((between.sum() - between.diagonal().sum()) / (count * (count - 1)))


def smoothed(relations: Mapping[Target, Relation], smoothing: float, scope: str) -> dict[Target, Relation]:
    """Relations mixed with those of the block they lie in, or, for a method everywhere, of the whole branch.

    Args:
        relations: by target.
        smoothing: the share of the block's mean, 0 to 1.
        scope: `target` or `global`.
    """
    if scope != "global" and smoothing == 0.0:
        return dict(relations)
    blocks: dict[object, list[Target]] = {}
    for target, one in relations.items():
        if one.count > 1:
            blocks.setdefault(target.is_clip if scope == "global" else block_of(target), []).append(target)
    found = dict(relations)
    share = 1.0 if scope == "global" else smoothing
    for targets in blocks.values():
        inside = [relations[target] for target in targets]
        cosine = _weighted([(one.cosine, one.energy) for one in inside])
        excess = _weighted([(one.excess, one.energy) for one in inside])
        for target, one in zip(targets, inside, strict=True):
            found[target] = Relation(
                one.count,
                (1 - share) * one.cosine + share * cosine,
                (1 - share) * one.excess + share * excess,
                one.energy,
            )
    return found


def _weighted(pairs: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for _, weight in pairs)
    if total == 0.0:
        return sum(value for value, _ in pairs) / len(pairs)
    return sum(value * weight for value, weight in pairs) / total


@dataclass(frozen=True)
class Choice:
    """A method, the rule that chose it, and what the rule went by; both in words."""

    method: str
    rule: str
    facts: str = ""

    @property
    def reason(self) -> str:
        """Why, in words."""
        return f"{self.facts}; {self.rule}" if self.facts else self.rule


def choose(recipe: Recipe, one: Relation) -> Choice:
    """The method for one target, and why."""
    if one.count == 1:
        return Choice(SUM, "one LoRA alone")
    facts = f"{one.count} LoRAs, mean cosine {one.cosine:+.2f}"
    if recipe.scope == "additive":
        return Choice(SUM, "everything is added, as asked", facts)
    if recipe.method != AUTO:
        return Choice(recipe.method, "as asked", facts)
    is_opposed = one.cosine < OPPOSED and one.excess > TORN
    if is_opposed:
        return Choice("ties", "opposed", f"{facts}, {one.excess:.0%} of signs torn beyond chance")
    if recipe.strategy_set == "full":
        return Choice(SUM, "balanced" if recipe.is_balanced else "added up", facts)
    if one.cosine > ALIKE and recipe.strategy_set == "no_slerp":
        return Choice("consensus", "alike", facts)
    return Choice(
        AVERAGE, "neither opposed nor alike" if recipe.strategy_set == "no_slerp" else "not opposed", facts
    )
