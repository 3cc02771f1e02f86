"""The report of a sweep as one HTML page."""

from collections.abc import Sequence

from .. import __version__
from ..autotuner.ranking import SHOWN, kept_of, mean_foreign
from ..autotuner.search import Candidate, Tuned
from .charts import cell, index, section, sentences, short, table, tiles, tint
from .html import Html, joined, page, tag

WIDTH, HEIGHT, EDGE = 720, 380, 48


def tune_page(found: Tuned, labels: Sequence[str], picked: int = 1) -> str:
    """The page of a sweep.

    Args:
        found: the sweep.
        labels: of the LoRAs, in the order of the stack.
        picked: the rank that was chosen.
    """
    title = f"The best way to merge {len(labels)} LoRAs" if len(labels) > 1 else "One LoRA, tuned"
    chosen = found.ranked[picked - 1]
    body = [
        tag("p", f"LoRA Alloy {__version__}", class_="brand"),
        tag("h1", title),
        tag("p", " + ".join(map(short, labels)), class_="lead"),
        tiles(
            (chosen.name, f"rank {picked}"),
            (f"{chosen.score:.3f}", f"score, {found.score}"),
            (f"{found.tried:,}", f"recipes tried, {len(found.ranked):,} of them different"),
            (f"{sum(found.seconds.values()):.1f} s", "in all"),
        ),
        _map(found, picked),
        _ranking(found, labels, picked),
    ]
    if found.notes:
        body.append(section("Notes", "", sentences(found.notes)))
    return page(f"{title} · LoRA Alloy", f"LoRA Alloy {__version__}", *body)


def _ranking(found: Tuned, labels: Sequence[str], picked: int) -> Html:
    heads = [("", "number"), ("Recipe", ""), ("Score", "number"), ("Predicted", "number")]
    heads += [(f"Kept {place}", "number") for place in range(1, len(labels) + 1)]
    heads += [("Foreign", "number")]
    rows = [
        [
            cell(str(rank)),
            tag(
                "td", one.name, *_chips(one, rank == picked), class_="name", title=", ".join(one.same) or None
            ),
            cell("–" if one.measured is None else f"{one.measured:.3f}"),
            cell(f"{'~' if one.is_sampled else ''}{one.predicted:.3f}"),
            *(tint(None if kept != kept else kept, 1.0, "{:.0%}".format) for kept in kept_of(one)),
            cell(f"{mean_foreign(one):.2f}"),
        ]
        for rank, one in enumerate(found.ranked[: max(2 * SHOWN, len(found.merged))], 1)
    ]
    names = joined(*(tag("span", index(place), short(label), " ") for place, label in enumerate(labels, 1)))
    return section(
        "The ranking",
        "Kept: what a LoRA does to the inputs that it reads; foreign: what is done elsewhere, relative to the LoRAs."
        " A score is at most 0, which is every LoRA whole and nothing beside; ~ marks one that was predicted from a"
        " sample.",
        tag("p", names),
        table(heads, rows),
    )


def _chips(one: Candidate, is_picked: bool) -> list[Html]:
    chips = [tag("span", "picked", class_="chip kept")] if is_picked else []
    if one.same:
        chips.append(tag("span", f"and {len(one.same)} alike", class_="chip"))
    if one.verdict is not None:
        told = "no verdict" if one.verdict.external is None else f"evaluator {one.verdict.external:.3f}"
        chips.append(tag("span", told, class_="chip"))
    return [joined(" ", chip) for chip in chips]


def _map(found: Tuned, picked: int) -> Html:
    """Every candidate on what is kept × what is done elsewhere."""
    points = [(mean_kept(one), mean_foreign(one)) for one in found.ranked]
    low, high = min(kept for kept, _ in points), max(kept for kept, _ in points)
    top = max(foreign for _, foreign in points) or 1.0
    wide = (high - low) or 1.0
    dots = []
    for rank, (one, (kept, foreign)) in enumerate(zip(found.ranked, points, strict=True), 1):
        x = EDGE + (kept - low) / wide * (WIDTH - 2 * EDGE)
        y = HEIGHT - EDGE - foreign / top * (HEIGHT - 2 * EDGE)
        kind = "picked" if rank == picked else "merged" if one.plan else "tried"
        told = f"{rank}. {one.name}: kept {kept:.0%}, foreign {foreign:.2f}, score {one.score:.3f}"
        size = {"picked": "9", "merged": "6", "tried": "4"}[kind]
        dots.append(
            (size, tag("circle", tag("title", told), cx=f"{x:.1f}", cy=f"{y:.1f}", r=size, class_=kind))
        )
    # The small ones first, so that the large ones lie on top.
    drawn = [dot for _, dot in sorted(dots, key=lambda dot: int(dot[0]))]
    axes = [
        tag("line", x1=str(EDGE), y1=str(HEIGHT - EDGE), x2=str(WIDTH - EDGE), y2=str(HEIGHT - EDGE)),
        tag("line", x1=str(EDGE), y1=str(EDGE), x2=str(EDGE), y2=str(HEIGHT - EDGE)),
        tag("text", f"{low:.0%}", x=str(EDGE), y=str(HEIGHT - EDGE + 18)),
        tag(
            "text",
            f"kept, mean over the LoRAs: {high:.0%}",
            x=str(WIDTH - EDGE),
            y=str(HEIGHT - EDGE + 18),
            class_="end",
        ),
        tag("text", f"foreign: {top:.2f}", x=str(EDGE), y=str(EDGE - 10)),
    ]
    chart = tag("svg", *axes, *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="scatter")
    return section(
        "All of them",
        "Every recipe by how much of the LoRAs it keeps, to the right, and how much it does elsewhere, upwards. The"
        " large dot is picked, middle ones were merged; point at one to read it.",
        chart,
    )


def mean_kept(one: Candidate) -> float:
    """What is kept, mean over the LoRAs."""
    kept = [value for value in kept_of(one) if value == value]
    return sum(kept) / len(kept) if kept else 0.0
