"""What files are, as one HTML page: a table of all, then each with its ranks and its blocks."""

from collections.abc import Mapping, Sequence

from .. import __version__
from ..lora.estimate import Estimate
from ..lora.inspection import Inspection
from ..lora.stretches import Stretch
from .charts import cell, facts, index, marked, section, sentences, short, table, tiles, tint
from .described import described, size
from .html import Html, joined, page, tag

RANKS_SHOWN = 12
BLOCKS_SHOWN = 128


def inspect_page(found: Sequence[Inspection], failed: Sequence[str], estimate: Estimate) -> str:
    """The page for files that were inspected.

    Args:
        found: one for each that could be read.
        failed: a sentence for each that could not.
        estimate: of a merge of those that could.
    """
    count = len(found)
    title = "One LoRA file" if count == 1 else f"{count} LoRA files"
    body = [
        tag("p", f"LoRA Alloy {__version__}", class_="brand"),
        tag("h1", title),
        tag("p", "What they are, from their headers.", class_="lead"),
    ]
    if found:
        body += [_tiles(found, estimate), _overview(found)]
    if failed:
        body.append(section("Not read", "", sentences(failed, "warned")))
    body += (_file(place, one) for place, one in enumerate(found, 1))
    return page(f"{title} · LoRA Alloy", f"LoRA Alloy {__version__}", *body)


def _tiles(found: Sequence[Inspection], estimate: Estimate) -> Html:
    return tiles(
        (f"{sum(len(one.problems) for one in found)}", "problems"),
        (size(sum(one.size_bytes for one in found)), "on disk"),
        (f"≈ {size(estimate.result_bytes)}", "if merged, at full rank"),
        (f"≈ {size(estimate.peak_bytes)}", "of memory for that"),
        (f"≈ {estimate.seconds:.0f} s", "of a CPU core for that"),
    )


def _overview(found: Sequence[Inspection]) -> Html:
    heads = [
        *(("File", ""), ("Family", ""), ("Format", ""), ("Rank", "number"), ("Targets", "number")),
        *(("In text encoders", "number"), ("Size", "number"), ("Problems", "number")),
    ]
    rows = [
        [
            tag(
                "td",
                index(place),
                short(one.path.name),
                " ",
                *_chips(one),
                class_="name",
                title=one.path.name,
            ),
            cell(one.title, "why"),
            cell(", ".join(one.formats), "why"),
            cell(_range(one.ranks)),
            cell(f"{one.model_count:,}"),
            cell(f"{one.clip_count:,}"),
            cell(size(one.size_bytes)),
            cell(str(len(one.problems)) if one.problems else "–"),
        ]
        for place, one in enumerate(found, 1)
    ]
    return section(
        "All of them",
        "A coloured mark names what a file is for where that is not a picture's content: a merge holds it out of"
        " the blend.",
        table(heads, rows),
    )


def _chips(one: Inspection) -> list[Html]:
    if one.structural is None:
        return []
    kind = "chip kept" if one.structural.is_held else "chip"
    mark = one.structural.title + ("" if one.structural.is_held else "?")
    return [tag("span", mark, class_=kind, title="; ".join(one.structural.evidence))]


def _range(ranks: Mapping[int, int]) -> str:
    if not ranks:
        return "–"
    low, high = min(ranks), max(ranks)
    return str(low) if low == high else f"{low}–{high}"


def _file(place: int, one: Inspection) -> Html:
    body: list[Html] = [facts([(name.capitalize(), joined(*marked(text))) for name, text in described(one)])]
    pictures = [*_ranks(one.ranks), *(_blocks(stretch) for stretch in one.stretches)]
    if pictures:
        body.append(tag("div", tag("p", ""), *pictures, class_="stacked"))
    if one.problems:
        body.append(joined(tag("h3", "Problems"), sentences(one.problems, "warned")))
    return tag("section", tag("h2", index(place), short(one.path.name)), *body)


def _ranks(ranks: Mapping[int, int]) -> list[Html]:
    """How many modules have which rank; of many ranks the most frequent."""
    if len(ranks) < 2:
        return []
    most = max(ranks.values())
    shown = sorted(sorted(ranks, key=lambda rank: -ranks[rank])[:RANKS_SHOWN])
    rows = [
        [cell(str(rank)), tag("td", _bar(ranks[rank] / most)), cell(f"{ranks[rank]:,}")] for rank in shown
    ]
    more = f", the {RANKS_SHOWN} most frequent of {len(ranks)}" if len(ranks) > RANKS_SHOWN else ""
    heads = [("Rank", "number"), ("", ""), ("Modules", "number")]
    return [tag("div", tag("h3", f"Modules by rank{more}"), table(heads, rows))]


def _bar(share: float) -> Html:
    return tag("div", tag("i", style=f"width:{share:.1%}"), class_="bar")


def _blocks(stretch: Stretch) -> Html:
    """One cell a block, the darker the more modules; a dash where it has none."""
    last = max(stretch.depth, max(stretch.counts) + 1)
    blocks = range(last) if last <= BLOCKS_SHOWN else sorted(stretch.counts)[:BLOCKS_SHOWN]
    most = max(stretch.counts.values())
    heads = [tag("th", "Block"), *(tag("th", str(block), class_="head") for block in blocks)]
    cells = [
        tint(stretch.counts.get(block), most, "{:.0f}".format, f"{stretch.name} {block}") for block in blocks
    ]
    drawn = tag(
        "table",
        tag("thead", tag("tr", *heads)),
        tag("tbody", tag("tr", tag("th", "Modules"), *cells)),
        class_="map dense",
    )
    return tag("div", tag("h3", f"Modules by block: {stretch.text()}"), tag("div", drawn, class_="wide"))
