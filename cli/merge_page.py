"""The report of a merge as one HTML page."""

import json

from .. import __version__
from ..merging.plan import Plan
from ..merging.report import Report, SourceReport
from ..merging.report_text import SOFTER, branch_line, choice_words, source_marks, together
from ..merging.retention import percent
from ..merging.saving import Proof
from .charts import (
    bar,
    block_map,
    cell,
    facts,
    index,
    lora_head,
    section,
    sentences,
    short,
    table,
    tiles,
    tint,
)
from .described import size
from .html import Html, joined, page, tag
from .merge_strategy import methods_section, result_section
from .pair_maps import pair_section

TOP = 1.25  # the least end of the retention bars


def merge_page(report: Report, plan: Plan, proof: Proof, naming: str) -> str:
    """The page for a merge that was saved."""
    count = len(report.sources)
    title = f"{count} LoRAs merged into one" if count > 1 else "One LoRA, rewritten"
    labels = [source.label for source in report.sources]
    body = [
        tag("p", f"LoRA Alloy {__version__}", class_="brand"),
        tag("h1", title),
        tag("p", f"{proof.path.name} · {report.family}", class_="lead"),
        _tiles(report, proof),
        _sources(report),
        *([_leaves(report)] if report.leaves else []),
        *([pair_section(labels, report.pairs, _together(report))] if report.pairs else []),
        _blocks(report),
        methods_section(report),
        _scales(report),
        result_section(report),
        _proof(report, plan, proof, naming),
    ]
    if report.notes:
        body.append(section("Notes", "", sentences(report.notes)))
    return page(f"{proof.path.name} · LoRA Alloy", f"LoRA Alloy {__version__}", *body)


def _tiles(report: Report, proof: Proof) -> Html:
    low, high = report.ranks
    return tiles(
        (f"{report.target_count:,}", f"targets, {report.clip_count} in text encoders"),
        (str(low) if low == high else f"{low}–{high}", "rank of the result"),
        (size(proof.size_bytes), "on disk"),
        (_error(report.error), "largest error against the exact merge"),
        ("proven" if proof.read_error == 0.0 else _error(proof.read_error), "read back and compared"),
    )


def _error(value: float) -> str:
    return "0" if value == 0.0 else f"{value:.1e}"


def _sources(report: Report) -> Html:
    top = max(TOP, *(abs(source.retention) for source in report.sources))
    heads = [
        *(("LoRA", ""), ("Left of it", "number"), ("", ""), ("Strength", "number"), ("CLIP", "number")),
        *(("Targets", "number"), ("Rank", "number"), ("Norm", "number")),
    ]
    rows = [_source(place, source, top) for place, source in enumerate(report.sources, 1)]
    return section(
        "What is left of each",
        "How much of a LoRA the result still does, relative to its strength: 100% is all of it, 0 nothing,"
        " more than 100% where others push the same way, negative where they turn it around.",
        table(heads, rows),
    )


def _source(place: int, source: SourceReport, top: float) -> list[Html]:
    chips = [
        tag("span", mark, class_="chip kept" if mark == source.mark else "chip", title=source.held or None)
        for mark in source_marks(source)
    ]
    named = joined(index(place), short(source.label), " ", *chips)
    return [
        tag("td", named, class_="name", title=source.label),
        cell(percent(source.retention)),
        tag("td", bar(source.retention, top, "kept" if source.preserve else "")),
        cell(f"{source.strength:g}"),
        cell(f"{source.clip_strength:g}"),
        cell(f"{source.target_count:,}"),
        cell(f"{source.mean_rank:.0f}"),
        cell(f"{source.norm:.3g}"),
    ]


def _leaves(report: Report) -> Html:
    """The LoRAs that the formula merged first."""
    heads = [
        *(("LoRA", ""), ("Inside", ""), ("Left of it", "number"), ("", ""), ("Strength", "number")),
        ("CLIP", "number"),
    ]
    top = max(TOP, *(abs(leaf.retention) for leaf in report.leaves))
    rows = [
        [
            tag("td", short(leaf.label), class_="name", title=leaf.label),
            cell(leaf.inside, ""),
            cell(percent(leaf.retention)),
            tag("td", bar(leaf.retention, top)),
            cell(f"{leaf.strength:.3g}"),
            cell(f"{leaf.clip_strength:.3g}"),
        ]
        for leaf in report.leaves
    ]
    told = [f"{inner.label}: {'; '.join(map(choice_words, inner.choices))}." for inner in report.inner]
    told += [
        f"{inner.label}: {branch_line(branch, inner.labels)}"
        for inner in report.inner
        for branch in inner.scales
    ]
    return section(
        "Merged first",
        "What the formula merged first, and how much of each LoRA inside is left in the end, relative to its strength"
        " times the weights around it.",
        table(heads, rows),
        tag("details", tag("summary", "How"), sentences(told)),
    )


def _together(report: Report) -> Html:
    return tag("div", tag("h3", "Together"), tag("p", _capital(together(report).removeprefix("Together: "))))


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _blocks(report: Report) -> Html:
    heads = [
        *(
            lora_head(place, source.label, len(report.sources))
            for place, source in enumerate(report.sources, 1)
        ),
        tag("th", "Plain sum", class_="number"),
        tag("th", "Result", class_="number"),
        tag("th", "Targets", class_="number"),
    ]
    rows = []
    for name, methods in report.blocks.items():
        loud = report.loudness[name]
        cells = [
            tint(source.blocks.get(name), 1.0, percent, f"{short(source.label)} in {name}")
            for source in report.sources
        ]
        norms = [cell(f"{loud.plain:.3g}"), cell(f"{loud.merged:.3g}")]
        rows.append((name, [*cells, *norms, cell(f"{sum(methods.values()):,}")]))
    return section(
        "Block by block",
        "How much of each LoRA is left in every block, and the block's norm before and after: of all LoRAs added up"
        " at their strengths, and of the result. A dash: the LoRA does not touch it.",
        block_map(heads, rows, len(report.sources)),
    )


def _scales(report: Report) -> Html:
    heads = [
        *(("", ""), ("Plain sum", "number"), ("Blend", "number"), ("Scale", "number")),
        *(("Result", "number"), ("Why", "")),
    ]
    rows = [
        [
            cell(branch.title.capitalize(), "name"),
            cell(f"{branch.sum_norm:.3g}"),
            cell(f"{branch.blend_norm:.3g}"),
            cell(f"× {branch.scale:.3f}"),
            cell(f"{branch.blend_norm * branch.scale:.3g}"),
            cell(branch.reason, "why"),
        ]
        for branch in report.scales
    ]
    balanced = any(factor < SOFTER for branch in report.scales for factor in branch.factors)
    return section(
        "How loud it is",
        "Norms of all targets together. The blend is what the method makes of the LoRAs that are not"
        " preserved; the scale is one factor for all of it.",
        table(heads, rows),
        *([tag("h3", "What each LoRA is turned down to"), _balance(report)] if balanced else []),
    )


def _balance(report: Report) -> Html:
    """Per LoRA and branch: its norm at its strength, and the factor before the blend."""
    heads = [("LoRA", "")]
    for branch in report.scales:
        heads += [(f"Norm, {branch.title}", "number"), ("Turned to", "number"), ("", "")]
    rows = []
    for place, source in enumerate(report.sources):
        cells = [tag("td", index(place + 1), short(source.label), class_="name", title=source.label)]
        for branch in report.scales:
            factor, norm = branch.factors[place], branch.energies[place]
            if norm > 0:
                cells += [cell(f"{norm:.3g}"), cell(f"× {factor:.2f}"), tag("td", bar(factor, 1.0))]
            else:
                cells += [cell("–"), cell("–"), cell("", "")]
        rows.append(cells)
    return table(heads, rows)


def _proof(report: Report, plan: Plan, proof: Proof, naming: str) -> Html:
    read = (
        "every target equals the merge bit for bit"
        if proof.read_error == 0.0
        else f"the largest difference of a target is {proof.read_error:.1e} of its norm"
    )
    louder = ""
    if report.suggested_strength > 1.005:
        louder = f"; up to {report.suggested_strength:.2f} it is no louder than its parts are on average"
    told = [
        ("File", f"{proof.path.name}, {size(proof.size_bytes)}, in {naming} naming"),
        ("Read back", f"{proof.target_count:,} targets compared; {read}"),
        ("Rounding and rank", f"largest error {report.error:.1e}, on {report.worst}"),
        ("Use it at", f"strength 1.0, in any loader{louder}"),
        ("Prove it again", tag("code", f"lora-alloy verify {proof.path.name}")),
    ]
    recipe = tag("pre", json.dumps(plan.recipe.to_json(), indent=2))
    sources = tag("pre", "\n".join(f"{source.sha256}  {source.label}" for source in plan.sources))
    return section(
        "Proof",
        "The file was read again as any loader reads it, and compared with what was merged, before it took"
        " its place.",
        facts(told),
        tag("details", tag("summary", "Recipe"), recipe),
        tag("details", tag("summary", "Contents that were merged (SHA-256)"), sources),
    )
