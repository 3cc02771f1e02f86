"""The report of a merge in words, for a terminal or a node (`spec/nodes.md` §2.8)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..analysis.pairs import pair_lines
from .retention import percent
from .scale import Branch
from .summary import Choices, Form

if TYPE_CHECKING:
    from .cost import Cost
    from .report import Report, SourceReport

SOFTER = 1.0 - 1e-9  # a factor nearer to 1 is rounding
COLUMNS = 8  # of more LoRAs, a terminal shows what suffers most


def report_lines(report: "Report") -> list[str]:
    """The report, line by line."""
    count = len(report.sources)
    lines = [f"LoRA Alloy: {count} LoRA{'s' * (count != 1)} merged for {report.family}", ""]
    lines += _sources(report)
    if report.pairs:
        lines += ["", *pair_lines(report.pairs)]
        lines += [together(report)] if len(report.pairs) > 1 else []
    lines += ["", *_done(report)]
    lines += (f"Note: {note}" for note in report.notes)
    return [*lines, "", *_blocks(report)]


def _sources(report: "Report") -> list[str]:
    named = [f"{place}. {source.label}" for place, source in enumerate(report.sources, 1)]
    width = max(map(len, named))
    lines = [f"{'LoRA':<{width}}  strength    CLIP  targets  rank     norm   left"]
    for name, source in zip(named, report.sources, strict=True):
        lines.append(
            f"{name:<{width}} "
            f" {source.strength:8.3g}{source.clip_strength:8.3g}{source.target_count:9d}"
            f"{source.mean_rank:6.0f}{source.norm:9.3g}{percent(source.retention):>7}"
            + "".join(f"  {mark}" for mark in source_marks(source))
        )
    lines += (
        f"  {leaf.label} inside {leaf.inside}, at {leaf.strength:.3g} (CLIP {leaf.clip_strength:.3g}):"
        f" {percent(leaf.retention)} left"
        for leaf in report.leaves
    )
    return lines


def source_marks(source: "SourceReport") -> list[str]:
    """What is special about one entry, in a few words each."""
    marks = [source.mark] if source.mark else []
    marks += [word.replace("_", " ") for word in (source.conflict_mode, source.key_filter) if word != "all"]
    if source.unmatched_count:
        share = f" ({percent(source.skipped_share)} of its energy)" if source.skipped_share else ""
        marks.append(f"{source.unmatched_count} without a place{share}")
    return marks


def together(report: "Report") -> str:
    """How the LoRAs relate as a whole: means over the pairs, and how far their norms are apart."""
    met = [pair for pair in report.pairs if pair.shared_count]
    if not met:
        return "No two of them meet."
    count = len(met)
    cosine, conflict, expected = (
        sum(values) / count
        for values in (
            [pair.cosine for pair in met],
            [pair.conflict for pair in met],
            [pair.expected for pair in met],
        )
    )
    norms = [source.norm for source in report.sources if source.norm > 0]
    # The 0.0 takes the sign off a zero.
    return (
        f"Together: mean cosine {round(cosine, 2) + 0.0:+.2f}; signs disagree on {conflict:.0%}, chance gives"
        f" {expected:.0%}; the loudest is {max(norms) / min(norms):.2f} times the quietest."
    )


def _done(report: "Report") -> list[str]:
    methods = ", ".join(f"{method} {count}" for method, count in report.methods.items())
    lines = [
        f"Targets: {report.target_count}, {report.clip_count} of them in text encoders. Methods: {methods}.",
        f"Why: {'; '.join(map(choice_words, report.choices))}.",
    ]
    lines += (f"Element by element: {work.sentence()}." for work in report.work)
    labels = [source.label for source in report.sources]
    lines += (branch_line(branch, labels) for branch in report.scales)
    for inner in report.inner:
        lines.append(f"Inside {inner.label}: {'; '.join(map(choice_words, inner.choices))}.")
        lines += (f"Inside {inner.label}: {branch_line(branch, inner.labels)}" for branch in inner.scales)
    low, high = report.ranks
    lines.append(
        f"Result: rank {low if low == high else f'{low} to {high}'}, {report.size_bytes / 1e6:.1f} MB, norm"
        f" {report.norm:.3g}. Largest error {report.error:.1e}, on {report.worst}."
    )
    if [form.name for form in report.forms] != ["low-rank"]:
        lines.append(f"Form: {'; '.join(map(form_words, report.forms))}.")
    if report.suggested_strength > 1.005:
        lines.append(
            f"Up to strength {report.suggested_strength:.2f} it is no louder than its parts are on average."
        )
    return [*lines, cost_line(report.cost)] if report.cost else lines


def choice_words(choice: Choices) -> str:
    """A method, its rule, and on how many targets."""
    return f"{choice.method} on {choice.target_count}, {choice.rule}"


def form_words(form: Form) -> str:
    """A form of results, with its size and its error."""
    size = f", {form.size_bytes / 1e6:.1f} MB" if form.size_bytes else ", made when it is needed"
    return f"{form.name} on {form.target_count}{size}, error up to {form.error:.1e}"


def cost_line(cost: "Cost") -> str:
    """Memory and time, in a sentence."""
    spent = (
        f"Time: {cost.seconds:.1f} s, {cost.measure_seconds:.1f} of them to measure, {cost.plan_seconds:.1f} to plan,"
        f" {cost.merge_seconds:.1f} to merge."
    )
    if not cost.peak_bytes:
        return spent
    grown = f", {cost.grown_bytes / 1e6:.0f} MB of it since the merge began" if cost.grown_bytes else ""
    return f"{spent} Memory: the process has held up to {cost.peak_bytes / 1e6:.0f} MB{grown}."


def branch_line(branch: Branch, labels: Sequence[str]) -> str:
    """What a branch is multiplied by, in words: one scale, or what every LoRA is turned down to."""
    playing = [place for place, energy in enumerate(branch.energies) if energy > 0]
    turned = [place for place in playing if branch.factors[place] < SOFTER]
    parts = [f"{labels[place]} × {branch.factors[place]:.2f}" for place in turned]
    if not parts:
        return f"Scale of the {branch.title}: {branch.scale:.3f} ({branch.reason})."
    if len(turned) < len(playing):
        parts.append("others as they are")
    if branch.scale != 1.0:
        parts.append(f"all of it × {branch.scale:.3f}")
    return f"Balance of the {branch.title}: {', '.join(parts)} ({branch.reason})."


def _blocks(report: "Report") -> list[str]:
    """One line a block: how loud it was and is, what is left of every LoRA, and the methods."""
    width = max(map(len, report.blocks), default=0)
    is_many = len(report.sources) > COLUMNS
    numbers = ["least left"] if is_many else [f"left {place}" for place in range(1, len(report.sources) + 1)]
    heads = "".join(f"{number:>{max(8, len(number) + 2)}}" for number in numbers)
    lines = [f"{'block':<{width}}  targets  norm: sum  result{heads}  methods"]
    for name, counts in report.blocks.items():
        shares = [source.blocks.get(name) for source in report.sources]
        if is_many:
            shares = [min((share for share in shares if share is not None), default=None)]
        left = "".join(
            f"{'–' if share is None else percent(share):>{max(8, len(number) + 2)}}"
            for share, number in zip(shares, numbers, strict=True)
        )
        loud = report.loudness[name]
        methods = ", ".join(f"{method} {count}" for method, count in counts.items())
        lines.append(
            f"{name:<{width}}{sum(counts.values()):9d}{loud.plain:11.3g}{loud.merged:8.3g}{left}"
            f"  {methods if len(counts) > 1 else next(iter(counts))}"
        )
    return lines
