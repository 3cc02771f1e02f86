"""What a merge did, as a value: text, JSON, and what an HTML page is drawn from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import fsum, hypot
from typing import Any

import torch

from ..analysis.pairs import Pair, pairs
from ..analysis.similarity import Measured, norms, strengths_on
from ..core.threads import one_thread
from ..lora.coverage import squared_norm
from ..lora.stack import Stack
from .cost import Cost
from .leaves import Leaf, leaves_of
from .losses import loss_notes
from .patch import Patch
from .plan import Plan
from .report_text import report_lines
from .retention import retention
from .scale import Branch
from .summary import (
    Choices,
    Form,
    Loudness,
    Worked,
    choices_of,
    forms_of,
    loudness_of,
    methods_by_block,
    work_of,
)

LOUDEST = 3.0
LOUDEST_OF = {"flux": 5.0}  # transformers bear more than UNets


@dataclass(frozen=True)
class SourceReport:
    """One entry: what it brought and what is left of it.

    Attributes:
        label: of its file.
        strength: on the model.
        clip_strength: on the text encoders.
        preserve: it was kept out of the blend and added on top.
        target_count: targets that it acts on.
        unmatched_count: of its modules, those that have no place in the model.
        mean_rank: over its targets.
        norm: of all its deltas at its strengths.
        retention: the share of it that is left, relative to its strengths.
        blocks: the same by block.
        held: why it is preserved though nobody asked.
        conflict_mode: at which entries it acts.
        key_filter: on which targets it acts.
        skipped_share: of its energy, `Σ‖Δ‖²`, what the modules without a place would have been; of those that can be
            read without a base weight.
    """

    label: str
    strength: float
    clip_strength: float
    preserve: bool
    target_count: int
    unmatched_count: int
    mean_rank: float
    norm: float
    retention: float
    blocks: dict[str, float]
    held: str = ""
    conflict_mode: str = "all"
    key_filter: str = "all"
    skipped_share: float = 0.0

    @property
    def mark(self) -> str:
        """What became of it, in a word or two, if it took no part in the blend."""
        return "" if not self.preserve else "held out" if self.held else "preserved"


@dataclass(frozen=True)
class Inner:
    """What a formula merged first: its name, how, and how loud."""

    label: str
    labels: tuple[str, ...]
    target_count: int
    choices: tuple[Choices, ...]
    scales: tuple[Branch, ...]


@dataclass(frozen=True)
class Report:
    """A finished merge.

    Attributes:
        sources: one per entry.
        pairs: how they relate, over all targets they share.
        methods: how many targets each method took.
        blocks: per block, how many targets each method took.
        choices: which rule chose which method, and how often.
        work: what was done element by element.
        forms: the forms of the results.
        loudness: per block, the norm of the plain sum and of the result.
        inner: what a formula merged first.
        leaves: the LoRAs inside of that.
        scales: of the model and of the text encoders.
        target_count: targets in the result; `clip_count` of them in text encoders.
        ranks: smallest and largest rank of the result.
        size_bytes: of the result's factors.
        norm: of the result.
        error: the largest relative error of a target against the exact merge, and `worst`, where.
        suggested_strength: up to which the result is no louder than its parts on average; 1 to 3, for Flux
            to 5.
        family: the model family, in words.
        notes: what the user should know.
        cost: memory and time; None if nobody looked.
    """

    sources: tuple[SourceReport, ...]
    pairs: tuple[Pair, ...]
    methods: dict[str, int]
    blocks: dict[str, dict[str, int]]
    scales: tuple[Branch, ...]
    target_count: int
    clip_count: int
    ranks: tuple[int, int]
    size_bytes: int
    norm: float
    error: float
    worst: str
    suggested_strength: float
    family: str
    notes: tuple[str, ...]
    choices: tuple[Choices, ...] = ()
    work: tuple[Worked, ...] = ()
    forms: tuple[Form, ...] = ()
    loudness: dict[str, Loudness] = field(default_factory=dict)
    inner: tuple[Inner, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    cost: Cost | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def text(self) -> str:
        """The report for a terminal or a node."""
        return "\n".join(report_lines(self))


def make_report(
    stack: Stack,
    plan: Plan,
    measured: Sequence[Measured],
    patches: Sequence[Patch],
    cost: Cost | None = None,
) -> Report:
    """Report on a finished merge.

    Args:
        stack: what was merged.
        plan: how.
        measured: what the plan was made from.
        patches: the result.
        cost: what it took, if somebody looked.

    Raises:
        FileError: what has no place in the model cannot be read, to say how much it is.
    """
    worst = max(patches, key=lambda patch: patch.error)
    ranks = [patch.rank for patch in patches]
    return Report(
        sources=_sources(stack, plan, measured, patches),
        pairs=tuple(pairs(stack, measured)),
        methods=dict(Counter(target.method for target in plan.targets).most_common()),
        blocks=methods_by_block(plan.targets),
        scales=plan.scales,
        target_count=len(patches),
        clip_count=sum(patch.target.is_clip for patch in patches),
        ranks=(min(ranks), max(ranks)),
        size_bytes=sum(patch.size_bytes for patch in patches),
        norm=hypot(*(patch.norm for patch in patches)),
        error=worst.error,
        worst=str(worst.target),
        suggested_strength=_suggested(stack, plan, measured, patches),
        family=stack.family.title if stack.family else "unknown architecture, merged by module name",
        notes=(*plan.notes, *loss_notes(plan.recipe, patches)),
        choices=choices_of(plan.targets),
        work=work_of(plan.targets),
        forms=forms_of(patches),
        loudness=loudness_of(stack, plan, measured, patches),
        inner=tuple(_inner(label, one) for label, one in plan.inner.items()),
        leaves=leaves_of(stack, patches),
        cost=cost,
    )


def _inner(label: str, plan: Plan) -> Inner:
    labels = tuple(source.label for source in plan.sources)
    return Inner(label, labels, len(plan.targets), choices_of(plan.targets), plan.scales)


def _sources(
    stack: Stack, plan: Plan, measured: Sequence[Measured], patches: Sequence[Patch]
) -> tuple[SourceReport, ...]:
    left = retention(stack, plan, measured, patches)
    loud = norms(stack, measured).tolist()
    skipped = _skipped(stack, measured)
    ranks: list[list[int]] = [[] for _ in stack.entries]
    for group in stack.groups:
        for contribution in group.contributions:
            ranks[contribution.entry].append(contribution.module.rank)
    return tuple(
        SourceReport(
            source.label,
            source.strength,
            source.clip_strength,
            source.preserve,
            len(ranks[index]),
            len(stack.unmatched[index]),
            sum(ranks[index]) / max(1, len(ranks[index])),
            loud[index],
            left[index].overall,
            left[index].blocks,
            source.held,
            source.conflict_mode,
            source.key_filter,
            skipped[index],
        )
        for index, source in enumerate(plan.sources)
    )


def _skipped(stack: Stack, measured: Sequence[Measured]) -> list[float]:
    """Per entry, which share of its energy the modules carry that the model does not have."""
    used: list[list[float]] = [[] for _ in stack.entries]
    for one in measured:
        for place, entry in enumerate(one.entries):
            used[entry].append(max(float(one.gram[place, place]), 0.0))
    shares = []
    with torch.no_grad(), one_thread():
        for entry, names, energies in zip(stack.entries, stack.unmatched, used, strict=True):
            found = map(entry.file.modules.__getitem__, names)
            lost = fsum(squared_norm(entry.file.load(one)) for one in found if not one.base_reason)
            total = lost + fsum(energies)
            shares.append(lost / total if total > 0 else 0.0)
            if names:
                entry.file.tensors.release()
    return shares


def _suggested(stack: Stack, plan: Plan, measured: Sequence[Measured], patches: Sequence[Patch]) -> float:
    """Mean norm of the inputs over the norm of the result, target by target (`spec/engine.md` §6.7)."""
    inputs, merged = 0.0, 0.0
    for patch, one in zip(patches, measured, strict=True):
        loud = strengths_on(stack, one).abs() * one.gram.diagonal().clamp(min=0).sqrt()
        if (heard := loud[loud > 0]).numel():
            inputs += float(heard.mean())
        merged += patch.norm
    loudest = LOUDEST_OF.get(plan.family or "", LOUDEST)
    return min(max(inputs / merged, 1.0), loudest) if merged > 0 else 1.0
