"""What a merge did, as a value: text, JSON, and what an HTML page is drawn from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import hypot
from typing import Any

from ..analysis.blocks import block_of
from ..analysis.pairs import Pair, pair_lines, pairs
from ..analysis.similarity import Measured, norms, strengths_on
from ..lora.stack import Stack
from .losses import loss_notes
from .patch import Patch
from .plan import Plan
from .retention import percent, retention
from .scale import Branch

LOUDEST = 3.0
LOUDEST_OF = {"flux": 5.0}  # transformers bear more than UNets


@dataclass(frozen=True)
class SourceReport:
    """One entry: what it brought and what is left of it; `held` is why it is preserved though nobody asked.

    `norm` is that of all its deltas at its strengths; `retention` and `blocks` are relative to its strength.
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

    @property
    def mark(self) -> str:
        """What became of it, in a word or two, if it took no part in the blend."""
        return "" if not self.preserve else "held out" if self.held else "preserved"


@dataclass(frozen=True)
class Report:
    """A finished merge.

    Attributes:
        sources: one per entry.
        pairs: how they relate, over all targets they share.
        methods: how many targets each method took.
        blocks: per block, how many targets each method took.
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

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def text(self) -> str:
        """The report for a terminal or a node."""
        return "\n".join(_lines(self))


def make_report(stack: Stack, plan: Plan, measured: Sequence[Measured], patches: Sequence[Patch]) -> Report:
    """Report on a finished merge."""
    blocks: dict[str, dict[str, int]] = {}
    for target in plan.targets:
        counts = blocks.setdefault(block_of(target.target), {})
        counts[target.method] = counts.get(target.method, 0) + 1
    worst = max(patches, key=lambda patch: patch.error)
    ranks = [patch.rank for patch in patches]
    return Report(
        sources=_sources(stack, plan, measured, patches),
        pairs=tuple(pairs(stack, measured)),
        methods=dict(Counter(target.method for target in plan.targets).most_common()),
        blocks=blocks,
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
    )


def _sources(
    stack: Stack, plan: Plan, measured: Sequence[Measured], patches: Sequence[Patch]
) -> tuple[SourceReport, ...]:
    left = retention(stack, plan, measured, patches)
    loud = norms(stack, measured).tolist()
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
        )
        for index, source in enumerate(plan.sources)
    )


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


def branch_line(branch: Branch, labels: Sequence[str]) -> str:
    """What a branch is multiplied by, in words: one scale, or what every LoRA is turned down to."""
    turned = zip(labels, branch.factors, strict=True)
    parts = [f"{label} × {factor:.2f}" for label, factor in turned if factor < 1.0]
    if not parts:
        return f"Scale of the {branch.title}: {branch.scale:.3f} ({branch.reason})."
    if len(parts) < len(branch.factors):
        parts.append("others as they are")
    if branch.scale != 1.0:
        parts.append(f"all of it × {branch.scale:.3f}")
    return f"Balance of the {branch.title}: {', '.join(parts)} ({branch.reason})."


def _lines(report: Report) -> list[str]:
    width = max(len(source.label) for source in report.sources)
    count = len(report.sources)
    lines = [f"LoRA Alloy: {count} LoRA{'s' * (count != 1)} merged for {report.family}", ""]
    lines.append(f"{'LoRA':<{width}}  strength    CLIP  targets  rank     norm   left")
    for source in report.sources:
        lines.append(
            f"{source.label:<{width}} "
            f" {source.strength:8.3g}{source.clip_strength:8.3g}{source.target_count:9d}"
            f"{source.mean_rank:6.0f}{source.norm:9.3g}{percent(source.retention):>7}"
            + (f"  {source.mark}" if source.mark else "")
        )
    lines += ["", *pair_lines(report.pairs), ""] if report.pairs else [""]
    methods = ", ".join(f"{method} {count}" for method, count in report.methods.items())
    lines.append(
        f"Targets: {report.target_count}, {report.clip_count} of them in text encoders. Methods: {methods}."
    )
    for branch in report.scales:
        lines.append(branch_line(branch, [source.label for source in report.sources]))
    low, high = report.ranks
    lines.append(
        f"Result: rank {low if low == high else f'{low} to {high}'}, {report.size_bytes / 1e6:.1f} MB, norm"
        f" {report.norm:.3g}. Largest error {report.error:.1e}, on {report.worst}."
    )
    if report.suggested_strength > 1.005:
        lines.append(
            f"Up to strength {report.suggested_strength:.2f} it is no louder than its parts are on average."
        )
    lines += (f"Note: {note}" for note in report.notes)
    return lines
