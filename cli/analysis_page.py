"""The report of an analysis as one HTML page."""

from itertools import combinations

from .. import __version__
from ..analysis.report import Analysis
from .charts import block_map, cell, index, lora_head, matrix, section, sentences, short, table, tiles, tint
from .html import Html, page, tag
from .pair_maps import pair_section, signed

PAIRS_SHOWN = 10
NAMES_SHOWN = 4


def analysis_page(analysis: Analysis) -> str:
    """The page for a stack that was analysed."""
    count = len(analysis.parts)
    title = f"How {count} LoRAs relate" if count > 1 else "One LoRA, looked at"
    body = [
        tag("p", f"LoRA Alloy {__version__}", class_="brand"),
        tag("h1", title),
        tag("p", f"{_names(analysis)} · {analysis.family}", class_="lead"),
        _tiles(analysis),
    ]
    if analysis.warnings:
        body.append(section("Worth knowing", "", sentences(analysis.warnings, "warned")))
    body.append(_parts(analysis))
    if analysis.pairs:
        labels = [part.label for part in analysis.parts]
        body.append(pair_section(labels, analysis.pairs, _overlaps(analysis)))
        body.append(_pairs_by_block(analysis))
    body.append(_places(analysis))
    if analysis.notes:
        body.append(section("Notes", "", sentences(analysis.notes)))
    return page(f"{title} · LoRA Alloy", f"LoRA Alloy {__version__}", *body)


def _names(analysis: Analysis) -> str:
    names = [short(part.label) for part in analysis.parts]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return " + ".join(names[:NAMES_SHOWN]) + more


def _tiles(analysis: Analysis) -> Html:
    targets = sum(block.target_count for block in analysis.blocks)
    told = [(f"{targets:,}", "targets they change"), (f"{len(analysis.blocks)}", "blocks of the model")]
    if analysis.pairs:
        closest = max(analysis.pairs, key=lambda pair: abs(pair.cosine))
        told.append((signed(closest.cosine), "largest cosine of a pair"))
        told.append((f"{analysis.loudness:.2f}×", "a plain sum, against the strongest alone"))
    return tiles(*told)


def _parts(analysis: Analysis) -> Html:
    heads = [
        *(("LoRA", ""), ("Strength", "number"), ("CLIP", "number"), ("Targets", "number")),
        *(("Rank", "number"), ("Effective rank", "number"), ("Norm", "number")),
    ]
    rows = [
        [
            tag("td", index(place), short(part.label), class_="name", title=part.label),
            cell(f"{part.strength:g}"),
            cell(f"{part.clip_strength:g}"),
            cell(f"{part.target_count:,}"),
            cell(f"{part.mean_rank:.0f}"),
            cell(f"{part.effective_rank:.1f}"),
            cell(f"{part.norm:.3g}"),
        ]
        for place, part in enumerate(analysis.parts, 1)
    ]
    return section(
        "The LoRAs",
        "The effective rank is how many directions a LoRA really uses; the norm is how much it changes, at"
        " its strength.",
        table(heads, rows),
    )


def _overlaps(analysis: Analysis) -> Html:
    labels = [part.label for part in analysis.parts]
    values: list[list[float | None]] = [
        [None if row == column else share for column, share in enumerate(shares)]
        for row, shares in enumerate(analysis.overlaps)
    ]
    return tag(
        "div",
        tag("h3", "Share of the row that lies in the column's main directions"),
        matrix(labels, values, 1.0, "{:.0%}".format),
    )


def _places(analysis: Analysis) -> Html:
    """Where each LoRA acts."""
    loudest = [
        max(block.norms[place] for block in analysis.blocks) or 1.0 for place in range(len(analysis.parts))
    ]
    heads = [
        *(lora_head(place, part.label, len(analysis.parts)) for place, part in enumerate(analysis.parts, 1)),
        tag("th", "Targets", class_="number"),
    ]
    rows = []
    for block in analysis.blocks:
        cells = [
            tint(norm / loud if norm else None, 1.0, "{:.0%}".format, f"{short(part.label)} in {block.name}")
            for norm, loud, part in zip(block.norms, loudest, analysis.parts, strict=True)
        ]
        rows.append((block.name, [*cells, cell(f"{block.target_count:,}")]))
    return section(
        "Where each acts",
        "How much a LoRA changes in every block; 100% is its loudest one. A dash: it does not touch it.",
        block_map(heads, rows, len(analysis.parts)),
    )


def _pairs_by_block(analysis: Analysis) -> Html:
    """The cosines of the pairs in every block; of many pairs, those of the largest ones."""
    numbers = list(combinations(range(1, len(analysis.parts) + 1), 2))
    places = sorted(
        range(len(numbers)),
        key=lambda place: -max(abs(block.pairs[place].cosine) for block in analysis.blocks),
    )
    shown = sorted(places[:PAIRS_SHOWN])
    heads = []
    for place in shown:
        (one, other), pair = numbers[place], analysis.pairs[place]
        heads.append(tag("th", f"{one} · {other}", class_="head", title=f"{pair.first} and {pair.second}"))
    rows = []
    for block in analysis.blocks:
        cells = []
        for place in shown:
            pair = block.pairs[place]
            name = f"{short(pair.first)} and {short(pair.second)} in {block.name}"
            cells.append(tint(pair.cosine if pair.shared_count else None, 1.0, signed, name))
        rows.append((block.name, cells))
    hint = "The cosine of every pair, by the LoRAs' numbers. A dash: the two do not meet in the block."
    if len(shown) < len(places):
        hint += f" Of {len(places)} pairs, the {len(shown)} whose cosines are largest somewhere."
    return section("Pairs, block by block", hint, block_map(heads, rows, len(shown)))
