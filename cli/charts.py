"""What reports are drawn with: bars, heat maps, tables. All of it is tables and boxes, without a script."""

from collections.abc import Callable, Sequence

from .html import Html, joined, tag

DENSE = 14  # more columns than this are coloured cells without numbers
ROOMY = 6  # up to so many columns are wide, and named
STRONGEST = 0.62  # the colour of the largest value, so that numbers stay readable on it


def short(label: str) -> str:
    """A file's name without its ending."""
    return label.removesuffix(".safetensors")


def index(number: int) -> Html:
    """The number by which a LoRA is called in a report."""
    return tag("span", str(number), class_="index")


def lora_head(place: int, label: str, count: int) -> Html:
    """The head of one LoRA's column: its number, and its name if there is room."""
    name = [short(label)] if count <= ROOMY else []
    return tag("th", index(place), *name, class_="head", title=label)


def section(title: str, hint: str, *body: Html) -> Html:
    """A card with a title and a sentence of how to read it."""
    explained = [tag("p", hint, class_="hint")] if hint else []
    return tag("section", tag("h2", title), *explained, *body)


def tiles(*told: tuple[str, str]) -> Html:
    """Large numbers with their names, as pairs of number and name."""
    return tag(
        "div",
        *(tag("div", tag("b", number), tag("span", name), class_="tile") for number, name in told),
        class_="tiles",
    )


def table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Html]]) -> Html:
    """A table; heads are pairs of a text and its class."""
    head = tag("tr", *(tag("th", text, class_=kind or None) for text, kind in heads))
    body = [tag("tr", *cells) for cells in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="wide")


def cell(text: str, kind: str = "number") -> Html:
    """A cell of a table."""
    return tag("td", text, class_=kind)


def bar(value: float, top: float, kind: str = "") -> Html:
    """A bar from 0 to `top` with a mark at 1; negative values in the colour of warnings."""
    width = min(abs(value) / top, 1.0) * 100
    filled = tag("i", class_=kind or ("less" if value < 0 else None), style=f"width:{width:.1f}%")
    return tag("div", filled, tag("b", style=f"left:{100 / top:.1f}%"), class_="bar")


def tint(value: float | None, largest: float, text: Callable[[float], str], title: str = "") -> Html:
    """A coloured cell: cool for positive values, warm for negative ones, none for None."""
    if value is None:
        return tag("td", "–", class_="cell none", title=title or None)
    strength = min(abs(value) / largest, 1.0) * STRONGEST
    shown = text(value)
    return tag(
        "td",
        shown,
        class_=f"cell {'warm' if value < 0 else 'cool'}",
        style=f"--v:{strength:.3f}",
        title=f"{title}: {shown}" if title else shown,
    )


def matrix(
    labels: Sequence[str],
    values: Sequence[Sequence[float | None]],
    largest: float,
    text: Callable[[float], str],
) -> Html:
    """A square heat map over LoRAs: row names in full, column heads by number."""
    numbers = [tag("th", index(place), class_="head", title=label) for place, label in enumerate(labels, 1)]
    rows = [
        tag(
            "tr",
            tag("th", index(place + 1), short(label), class_="row", title=label),
            *(
                tint(value, largest, text, f"{short(label)} and {short(other)}")
                for value, other in zip(values[place], labels, strict=True)
            ),
        )
        for place, label in enumerate(labels)
    ]
    head = tag("thead", tag("tr", tag("th", ""), *numbers))
    return tag("div", tag("table", head, tag("tbody", *rows), class_=_map(len(labels))), class_="wide")


def block_map(
    heads: Sequence[Html],
    rows: Sequence[tuple[str, Sequence[Html]]],
    map_columns: int,
    *,
    is_wide: bool = True,
) -> Html:
    """A table with one row a block, the text encoders under a line of their own.

    Args:
        heads: of all columns behind the block's name.
        rows: a block's name with its cells.
        map_columns: how many of the columns are coloured cells.
        is_wide: a few columns take the whole width of the page.
    """
    made, group = [], ""
    for name, cells in rows:
        here = "Text encoders" if ".layers." in name or name.startswith(("clip", "t5")) else "Model"
        if here != group:
            group = here
            made.append(tag("tr", tag("th", here, colspan=str(len(heads) + 1)), class_="group"))
        made.append(tag("tr", tag("th", name, class_="block"), *cells))
    head = tag("thead", tag("tr", tag("th", "Block"), *heads))
    return tag(
        "div",
        tag("table", head, tag("tbody", *made), class_=_map(map_columns) if is_wide else "map"),
        class_="wide",
    )


def sentences(told: Sequence[str], kind: str | None = None) -> Html:
    """A list of sentences; what stands between backticks is set as code."""
    return tag("ul", *(tag("li", *marked(sentence), class_=kind) for sentence in told))


def marked(sentence: str) -> list[str]:
    """A sentence in pieces, what stands between backticks as code."""
    return [tag("code", piece) if place % 2 else piece for place, piece in enumerate(sentence.split("`"))]


def facts(told: Sequence[tuple[str, str]]) -> Html:
    """Names and what belongs to them."""
    return tag("dl", *(joined(tag("dt", name), tag("dd", value)) for name, value in told))


def _map(columns: int) -> str:
    if columns > DENSE:
        return "map dense"
    return "map roomy" if columns <= ROOMY else "map"
