"""Rows as Markdown: quality overall and by kind of stack, with bootstrap intervals over the stacks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from merges import DEFAULT, PLAIN_SUM
from rows import Row
from truth import Truth
from zoo import STACKS

DRAWS = 2000
LEAST = {"hot": 0.57, "gentle": 0.54}
FARTHEST, HARMFUL = 0.10, 0.10


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean, and the ends of its 95 % bootstrap interval."""
    chance = np.random.default_rng(0)
    means = values[chance.integers(len(values), size=(DRAWS, len(values)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


@dataclass(frozen=True)
class Results:
    """The rows of one zoo as a table: recipes × stacks."""

    rows: Sequence[Row]

    @cached_property
    def stacks(self) -> list[tuple[str, ...]]:
        """In the order of the rows."""
        return list(dict.fromkeys(row.stack for row in self.rows))

    @cached_property
    def kinds(self) -> np.ndarray:
        """Of each stack."""
        kinds = {row.stack: row.kind for row in self.rows}
        return np.array([kinds[stack] for stack in self.stacks])

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The recipes, each with all that came to the same numbers on every stack, the first of them first."""
        same: dict[tuple[str, ...], list[str]] = {}
        for name in dict.fromkeys(row.recipe for row in self.rows):
            keys = tuple(row.key for row in self.rows if row.recipe == name)
            same.setdefault(keys, []).append(name)
        return {names[0]: names for names in same.values()}

    def of(self, name: str, measure: Callable[[Truth], float | None]) -> np.ndarray:
        """A measure of one recipe on every stack; NaN where there is none."""
        values = [measure(row.truth) for row in self.rows if row.recipe == name]
        return np.array([np.nan if value is None else value for value in values])

    @cached_property
    def quality(self) -> dict[str, np.ndarray]:
        """Q of every recipe on every stack, the best recipe first."""
        found = {name: self.of(name, lambda truth: truth.quality) for name in self.names}
        return dict(sorted(found.items(), key=lambda item: -item[1].mean()))

    def quality_of(self, name: str) -> float:
        """The mean Q of a recipe, under any of its names.

        Raises:
            KeyError: it was not judged.
        """
        return float(self.quality[self.first_name(name)].mean())

    def first_name(self, name: str) -> str:
        """The name under which a recipe's numbers are kept.

        Raises:
            KeyError: it was not judged.
        """
        for first, names in self.names.items():
            if name in names:
                return first
        raise KeyError(name)

    @cached_property
    def methods(self) -> list[str]:
        """The recipes that are one method on every target, with nothing before it; first names."""
        return [
            first
            for first, names in self.names.items()
            if any(not name.startswith((DEFAULT, "preset")) and " + " not in name for name in names)
        ]

    def by_kind(self, name: str) -> dict[str, float]:
        """The mean Q of a recipe on each kind of stack."""
        return {kind: float(self.quality[name][self.kinds == kind].mean()) for kind in STACKS}

    @cached_property
    def best(self) -> dict[str, float]:
        """The mean Q that the best recipe for each kind of stack has there."""
        each = [self.by_kind(name) for name in self.names]
        return {kind: max(one[kind] for one in each) for kind in STACKS}


def overall_table(results: Results) -> str:
    """One line a recipe: quality, what it is made of, and regret."""
    head = ["recipe", "Q", "mean", "least", "likeness", "composition", "excess", "regret"]
    best = np.stack(list(results.quality.values())).max(0)
    lines = []
    for name, quality in results.quality.items():
        measures = [
            results.of(name, lambda truth: truth.mean_retention),
            results.of(name, lambda truth: truth.least_retention),
            results.of(name, lambda truth: truth.least_likeness),
            results.of(name, lambda truth: truth.composition),
        ]
        excess = results.of(name, lambda truth: truth.excess).mean()
        lines.append(
            [
                _title(results, name),
                "{:.3f} [{:.2f}, {:.2f}]".format(*interval(quality)),
                *(f"{np.nanmean(values):.2f}" for values in measures),
                f"{excess:.1%}",
                f"{(best - quality).mean():.3f}",
            ]
        )
    return _table(head, lines)


def kinds_table(results: Results) -> str:
    """One line a recipe: its quality on each kind of stack, and how far it is from the best there."""
    counts = [f"{kind} ({int((results.kinds == kind).sum())})" for kind in STACKS]
    lines = []
    for name, quality in results.quality.items():
        each = results.by_kind(name)
        cells = [
            "{}{:.2f}{} [{:.2f}, {:.2f}]".format(
                *(("**", each[kind], "**") if each[kind] == results.best[kind] else ("", each[kind], "")),
                *interval(quality[results.kinds == kind])[1:],
            )
            for kind in STACKS
        ]
        worst = max(results.best[kind] - each[kind] for kind in STACKS)
        lines.append([_title(results, name), *cells, f"{worst:.3f}"])
    return _table(["recipe", *counts, "worst regret"], lines)


def default_lines(results: Results) -> str:
    """How the default stands against the best fixed recipe on every kind of stack."""
    default = results.first_name(DEFAULT)
    each, lines = results.by_kind(default), []
    for kind in STACKS:
        chosen = max(results.names, key=lambda name: results.by_kind(name)[kind])
        gap = (results.quality[chosen] - results.quality[default])[results.kinds == kind]
        spread = "{:.3f} [{:.2f}, {:.2f}]".format(*interval(gap))
        lines.append([kind, f"{each[kind]:.3f}", chosen, f"{results.best[kind]:.3f}", spread])
    return _table(["kind", "Q of the default", "best fixed recipe", "its Q", "difference"], lines)


def promises_table(found: Mapping[str, Results]) -> str:
    """What the default is to reach, and what it reaches, in every zoo."""
    least, farthest, harms = [], [], []
    for zoo, results in found.items():
        quality, wanted = results.quality_of(DEFAULT), LEAST[zoo]
        least.append(f"{_met(round(quality, 3) >= wanted)}: {quality:.3f} of {wanted:.2f}")
        default = results.first_name(DEFAULT)
        own, each = results.by_kind(default), [results.by_kind(name) for name in results.methods]
        gaps = {kind: max(one[kind] for one in each) - own[kind] for kind in STACKS}
        kind = max(gaps, key=lambda one: gaps[one])
        farthest.append(f"{_met(round(gaps[kind], 3) <= FARTHEST)}: {gaps[kind]:.3f} on {kind}")
        harm, plain = (results.of(name, lambda truth: truth.excess).max() for name in (default, PLAIN_SUM))
        harms.append(f"{_met(harm <= HARMFUL)}: {harm:.1%}; the plain sum {plain:.0%}")
    head = ["promise", *(f"{zoo} zoo" for zoo in found)]
    wanted = " and ".join(f"{LEAST[zoo]:.2f} ({zoo})" for zoo in found)
    return _table(
        head,
        [
            [f"Q is at least {wanted}", *least],
            [f"at most {FARTHEST:.2f} behind the best method on every kind of stack", *farthest],
            [
                f"never the damage of a plain sum: the largest excess of a stack is at most {HARMFUL:.0%}",
                *harms,
            ],
        ],
    )


def _met(is_met: bool) -> str:
    return "kept" if is_met else "**missed**"


def _title(results: Results, name: str) -> str:
    names = results.names[name]
    title = f"{name} (= {'; '.join(names[1:])})" if len(names) > 1 else name
    return f"**{title}**" if DEFAULT in names else title


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines)) + "\n"
