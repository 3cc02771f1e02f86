"""What reports count over the targets of a merge: methods and why, element-wise work, forms, norms by block."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import torch

from ..analysis.blocks import block_of
from ..analysis.similarity import Measured, strengths_on
from ..lora.full import Dense, Kron
from ..lora.stack import Stack
from .methods.spherical import combined_norm
from .patch import Patch
from .plan import Plan, TargetPlan


@dataclass(frozen=True)
class Choices:
    """On how many targets a rule chose a method."""

    method: str
    rule: str
    target_count: int


@dataclass(frozen=True)
class Worked:
    """What was done element by element, and on how many targets.

    Attributes:
        method: the method behind it.
        sparsifier: its name, empty for none.
        enhancers: their names, in the order in which they act.
        is_masked: a LoRA's `conflict_mode` kept it from some entries.
        target_count: on how many targets.
        densities: the least and the largest of the sparsifier; empty without one.
        votes: of TIES, by how many targets each way of electing decided.
    """

    method: str
    sparsifier: str
    enhancers: tuple[str, ...]
    is_masked: bool
    target_count: int
    densities: tuple[float, ...]
    votes: dict[str, int]

    def sentence(self) -> str:
        """The work in words."""
        told = []
        if self.densities:
            low, high = (f"{density:.0%}" for density in self.densities)
            told.append(f"{self.sparsifier} to {low if low == high else f'{low}–{high}'}")
        if self.votes:
            ways = (f"{vote} on {count}" for vote, count in self.votes.items())
            told.append(f"signs elected by {', '.join(ways)}")
        told += [name.replace("_", " ") for name in self.enhancers]
        told += ["conflict modes"] if self.is_masked else []
        return f"{self.method} on {self.target_count} targets" + (f": {'; '.join(told)}" if told else "")


@dataclass(frozen=True)
class Form:
    """Results of one form: `low-rank`, `Kronecker` or `dense`; the error is the largest of a target."""

    name: str
    target_count: int
    size_bytes: int
    error: float


@dataclass(frozen=True)
class Loudness:
    """Norms over the targets of one block: of all LoRAs added up at their strengths, and of the result."""

    plain: float
    merged: float


def choices_of(targets: Sequence[TargetPlan]) -> tuple[Choices, ...]:
    """Methods with the rules that chose them, the most frequent first."""
    found: dict[tuple[str, str], int] = {}
    for target in targets:
        pair = target.method, target.rule or target.reason
        found[pair] = found.get(pair, 0) + 1
    ordered = sorted(found.items(), key=lambda one: -one[1])
    return tuple(Choices(method, rule, count) for (method, rule), count in ordered)


def work_of(targets: Sequence[TargetPlan]) -> tuple[Worked, ...]:
    """Element-wise work, the most frequent first; empty where everything is a combination."""
    found: dict[tuple[str, str, tuple[str, ...], bool], list[TargetPlan]] = {}
    for target in targets:
        if (work := target.work) is not None:
            is_masked = any(mode != "all" for mode in work.masks)
            found.setdefault((target.method, work.sparsifier, work.enhancers, is_masked), []).append(target)
    made = []
    for (method, sparsifier, enhancers, is_masked), alike in found.items():
        settings = [one.work.settings for one in alike if one.work]
        densities = [float(one["density"]) for one in settings if "density" in one]
        votes: dict[str, int] = {}
        if "ties" in method:
            for one in settings:
                vote = str(one["vote"])
                votes[vote] = votes.get(vote, 0) + 1
        ends = (min(densities), max(densities)) if densities else ()
        made.append(Worked(method, sparsifier, enhancers, is_masked, len(alike), ends, votes))
    return tuple(sorted(made, key=lambda one: -one.target_count))


def forms_of(patches: Sequence[Patch]) -> tuple[Form, ...]:
    """The forms of results, low-rank ones first. What is not kept counts no bytes."""
    found: dict[str, list[Patch]] = {"low-rank": [], "Kronecker": [], "dense": []}
    for patch in patches:
        name = "Kronecker" if isinstance(patch.delta, Kron) else "low-rank"
        found["dense" if isinstance(patch.delta, Dense) else name].append(patch)
    return tuple(
        Form(name, len(alike), sum(one.size_bytes for one in alike), max(one.error for one in alike))
        for name, alike in found.items()
        if alike
    )


def loudness_of(
    stack: Stack, plan: Plan, measured: Sequence[Measured], patches: Sequence[Patch]
) -> dict[str, Loudness]:
    """Norms before and after, by block."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for target, one, patch in zip(plan.targets, measured, patches, strict=True):
        plain, merged = found.setdefault(block_of(target.target), ([], []))
        plain.append(combined_norm(one.gram, strengths_on(stack, one).to(torch.float64)))
        merged.append(patch.norm)
    return {name: Loudness(hypot(*plain), hypot(*merged)) for name, (plain, merged) in found.items()}


def methods_by_block(targets: Sequence[TargetPlan]) -> dict[str, dict[str, int]]:
    """Per block, how many targets each method took."""
    blocks: dict[str, dict[str, int]] = {}
    for target in targets:
        counts = blocks.setdefault(block_of(target.target), {})
        counts[target.method] = counts.get(target.method, 0) + 1
    return blocks
