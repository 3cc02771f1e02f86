"""Heat maps over pairs of LoRAs, as both reports show them."""

from collections.abc import Callable, Sequence
from itertools import combinations

from ..analysis.pairs import Pair, pair_lines
from .charts import matrix, section, sentences
from .html import Html, tag

FULL_EXCESS = 0.1
BESIDE = 4  # maps of up to so many LoRAs stand side by side


def pair_section(labels: Sequence[str], pairs: Sequence[Pair], *more: Html) -> Html:
    """How the LoRAs relate: cosine and excess conflict of every pair, in maps and in words."""
    maps = [
        tag("div", tag("h3", "Cosine"), _map(labels, pairs, lambda pair: pair.cosine, 1.0, signed)),
        tag(
            "div",
            tag("h3", "Sign conflict beyond chance"),
            # Turned, so that more conflict than chance gives is warm, as opposition is.
            _map(labels, pairs, lambda pair: -pair.excess, FULL_EXCESS, lambda value: points(-value)),
        ),
        *more,
    ]
    return section(
        "How they relate",
        "Cosine 1 is the same direction, 0 unrelated, below 0 against each other. Unrelated LoRAs disagree on"
        " half of all signs by chance alone, so only conflict beyond chance tells something.",
        tag("div", *maps, class_="side" if len(labels) <= BESIDE else "stacked"),
        tag("details", tag("summary", "In words"), sentences(pair_lines(pairs))),
    )


def signed(value: float) -> str:
    """A cosine, with its sign."""
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"


def points(value: float) -> str:
    """A difference of shares, in percentage points."""
    return f"{100 * value:+.1f}%" if abs(value) >= 0.0005 else "0.0%"


def _map(
    labels: Sequence[str],
    pairs: Sequence[Pair],
    measure: Callable[[Pair], float],
    largest: float,
    text: Callable[[float], str],
) -> Html:
    values: list[list[float | None]] = [[None] * len(labels) for _ in labels]
    for (first, second), pair in zip(combinations(range(len(labels)), 2), pairs, strict=True):
        value = measure(pair) if pair.shared_count else None
        values[first][second] = values[second][first] = value
    return matrix(labels, values, largest, text)
