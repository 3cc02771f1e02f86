"""How the LoRAs of a stack relate, as a value: text, JSON, and what an HTML page is drawn from."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from ..lora.stack import Stack
from .blocks import block_of
from .measure import mute_notes
from .pairs import OPPOSED, Pair, pair_lines, pairs
from .similarity import Measured, norms, strengths_on

LOUD = 1.3
UNEQUAL = 4.0
SHOWN = 4
SENTENCES = 8


@dataclass(frozen=True)
class Part:
    """One entry of the stack: what it brings.

    Attributes:
        label: of its file.
        strength: for the model.
        clip_strength: for the text encoders.
        target_count: targets that it changes.
        mean_rank: of its modules.
        effective_rank: the mean of what their spectra amount to, 0 if not measured.
        norm: of all its deltas at its strengths.
    """

    label: str
    strength: float
    clip_strength: float
    target_count: int
    mean_rank: float
    effective_rank: float
    norm: float


@dataclass(frozen=True)
class Block:
    """One block of the model: `norms` has one number an entry, `pairs` are those of the whole stack."""

    name: str
    target_count: int
    norms: tuple[float, ...]
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Analysis:
    """How the LoRAs of a stack relate.

    Attributes:
        family: the model family, in words.
        parts: one per entry.
        pairs: every two entries, over all targets they share.
        overlaps: `n × n`, [a][b] the share of a's energy that lies in b's leading subspace.
        blocks: the same, block by block, in the order of the model.
        loudness: the norm of the plain sum over that of the strongest entry.
        warnings: what may go wrong when these are stacked, in sentences.
        notes: what was done to the stack, in sentences.
    """

    family: str
    parts: tuple[Part, ...]
    pairs: tuple[Pair, ...]
    overlaps: tuple[tuple[float, ...], ...]
    blocks: tuple[Block, ...]
    loudness: float
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The analysis as JSON values."""
        return asdict(self)

    def text(self, *, has_blocks: bool = False) -> str:
        """The analysis for a terminal; with `has_blocks`, also block by block."""
        count = len(self.parts)
        lines = [f"LoRA Alloy: {count} LoRA{'s' * (count != 1)} for {self.family}", "", *_table(self)]
        lines += ["", *pair_lines(self.pairs)]
        if has_blocks:
            lines += ["", *_block_table(self)]
        lines += ["", f"Added up plainly, they are {self.loudness:.2f} times as loud as the strongest alone."]
        lines += (f"Warning: {warning}" for warning in self.warnings)
        lines += (f"Note: {note}" for note in self.notes)
        return "\n".join(lines)


def make_analysis(stack: Stack, measured: Sequence[Measured]) -> Analysis:
    """Sum up what was measured on a stack, over the whole model and block by block.

    Args:
        stack: the stack.
        measured: one record per group, in their order; overlaps and effective ranks are 0 where they were not
            asked for.
    """
    by_block: dict[str, list[Measured]] = {}
    for one in measured:
        by_block.setdefault(block_of(one.target), []).append(one)
    blocks = tuple(
        Block(name, len(inside), tuple(norms(stack, inside).tolist()), tuple(pairs(stack, inside)))
        for name, inside in by_block.items()
    )
    parts = _parts(stack, measured)
    found = tuple(pairs(stack, measured))
    strongest = max(part.norm for part in parts)
    loudness = _sum_norm(stack, measured) / strongest if strongest > 0 else 0.0
    return Analysis(
        family=stack.family.title if stack.family else "an unknown architecture, met by module name",
        parts=parts,
        pairs=found,
        overlaps=_overlaps(stack, measured),
        blocks=blocks,
        loudness=loudness,
        warnings=(
            *_few(_pair_warnings(found)),
            *_few(_block_warnings(found, blocks)),
            *_loud(parts, loudness),
        ),
        notes=(*stack.notes, *mute_notes(stack, measured)),
    )


def _parts(stack: Stack, measured: Sequence[Measured]) -> tuple[Part, ...]:
    ranks: list[list[int]] = [[] for _ in stack.entries]
    effective: list[list[float]] = [[] for _ in stack.entries]
    for group, one in zip(stack.groups, measured, strict=True):
        for place, contribution in enumerate(group.contributions):
            ranks[contribution.entry].append(contribution.module.rank)
            if one.effective_rank:
                effective[contribution.entry].append(one.effective_rank[place])
    loud = norms(stack, measured).tolist()
    return tuple(
        Part(
            entry.file.label,
            entry.strength,
            entry.strength_on_clip,
            len(ranks[index]),
            _mean(ranks[index]),
            _mean(effective[index]),
            loud[index],
        )
        for index, entry in enumerate(stack.entries)
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _sum_norm(stack: Stack, measured: Sequence[Measured]) -> float:
    energy = 0.0
    for one in measured:
        strengths = strengths_on(stack, one)
        energy += float(strengths @ one.gram @ strengths)
    return max(energy, 0.0) ** 0.5


def _overlaps(stack: Stack, measured: Sequence[Measured]) -> tuple[tuple[float, ...], ...]:
    """Means over the targets that two entries share, weighted by the energy of the first."""
    count = len(stack.entries)
    shared = [[0.0] * count for _ in range(count)]
    energy = [[0.0] * count for _ in range(count)]
    for one in measured:
        if one.overlap is None:
            continue
        for place, first in enumerate(one.entries):
            own = float(one.gram[place, place]) * stack.entries[first].strength_on(one.target) ** 2
            for other_place, second in enumerate(one.entries):
                shared[first][second] += own * float(one.overlap[place, other_place])
                energy[first][second] += own
    return tuple(
        tuple(top / bottom if bottom > 0 else 0.0 for top, bottom in zip(tops, bottoms, strict=True))
        for tops, bottoms in zip(shared, energy, strict=True)
    )


def _few(sentences: list[str]) -> list[str]:
    if len(sentences) <= SENTENCES:
        return sentences
    return [*sentences[:SENTENCES], f"So it is with {len(sentences) - SENTENCES} more pairs."]


def _pair_warnings(found: Sequence[Pair]) -> list[str]:
    sentences = []
    for pair in found:
        if pair.is_opposed:
            sentences.append(
                f"`{pair.first}` and `{pair.second}` pull in opposite directions (cosine {pair.cosine:+.2f}):"
                " together each is weaker than alone. Preserve one of them, or take one out."
            )
        elif pair.is_alike:
            sentences.append(
                f"`{pair.first}` and `{pair.second}` are much alike (cosine {pair.cosine:+.2f}): a plain sum"
                " doubles what they share."
            )
    return sentences


def _block_warnings(found: Sequence[Pair], blocks: Sequence[Block]) -> list[str]:
    """Opposition that the whole model hides: other blocks of the pair agree."""
    sentences = []
    for place, pair in enumerate(found):
        torn = [block for block in blocks if block.pairs[place].cosine < OPPOSED]
        if pair.is_opposed or not torn:
            continue
        torn.sort(key=lambda block: block.pairs[place].cosine)
        shown = ", ".join(f"{block.name} ({block.pairs[place].cosine:+.2f})" for block in torn[:SHOWN])
        more = f" and {len(torn) - SHOWN} more" if len(torn) > SHOWN else ""
        sentences.append(f"`{pair.first}` and `{pair.second}` oppose each other in {shown}{more}.")
    return sentences


def _loud(parts: Sequence[Part], loudness: float) -> list[str]:
    sentences = []
    if len(parts) > 1 and loudness > LOUD:
        sentences.append(
            f"A plain sum is {loudness:.1f} times as loud as the strongest LoRA alone, which tends to burn"
            " the picture; the automatic choice and auto-strength turn it down."
        )
    heard = [part for part in parts if part.norm > 0]
    if len(heard) > 1:
        loud, quiet = max(heard, key=lambda part: part.norm), min(heard, key=lambda part: part.norm)
        if loud.norm > UNEQUAL * quiet.norm:
            sentences.append(
                f"At these strengths `{loud.label}` is {loud.norm / quiet.norm:.1f} times as loud as"
                f" `{quiet.label}`, which may hardly be seen."
            )
    return sentences


def _table(analysis: Analysis) -> list[str]:
    width = max(len(part.label) for part in analysis.parts)
    lines = [f"{'LoRA':<{width}}  strength    CLIP  targets  rank  effective     norm"]
    for part in analysis.parts:
        lines.append(
            f"{part.label:<{width}}  {part.strength:8.3g}{part.clip_strength:8.3g}{part.target_count:9d}"
            f"{part.mean_rank:6.0f}{part.effective_rank:11.1f}{part.norm:9.3g}"
        )
    return lines


def _block_table(analysis: Analysis) -> list[str]:
    """Cosine and excess conflict of every pair, one line a block."""
    heads = [f"{one}·{other}" for one, other in combinations(range(1, len(analysis.parts) + 1), 2)]
    width = max(len(block.name) for block in analysis.blocks)
    lines = ["Cosine, and sign conflict beyond chance, block by block"]
    lines.append(f"{'block':<{width}}  targets" + "".join(f"{head:>15}" for head in heads))
    for block in analysis.blocks:
        cells = [
            # The zeros take the sign off what rounds to nothing.
            f"{round(pair.cosine, 2) + 0.0:+.2f} {round(100 * pair.excess, 1) + 0.0:+5.1f}%"
            if pair.shared_count
            else "-"
            for pair in block.pairs
        ]
        lines.append(
            f"{block.name:<{width}}{block.target_count:9d}" + "".join(f"{cell:>15}" for cell in cells)
        )
    return lines
