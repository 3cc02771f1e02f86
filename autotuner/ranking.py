"""A sweep in words: what was tried, what came out, and how its candidates rank."""

from collections.abc import Mapping, Sequence
from typing import Any

from .search import Candidate, Tuned

SHOWN = 10


def ranking_lines(found: Tuned, labels: Sequence[str], shown: int = SHOWN) -> list[str]:
    """The ranking, line by line.

    Args:
        found: the sweep.
        labels: of the LoRAs, in the order of the stack.
        shown: how many candidates, at most; all that were merged are shown.
    """
    lines = [
        f"LoRA Alloy: {found.tried} recipes tried, {len(found.ranked)} of them different, {len(found.merged)} merged.",
        f"Score: {found.score}, at most 0; 0 is every LoRA whole, and nothing beside. `~` is predicted from a sample.",
        "Kept: what a LoRA does to the inputs that it reads, 100% if it is all there. Foreign: what is done elsewhere,"
        " relative to the LoRA.",
        "",
    ]
    lines += (f"{place}. {label}" for place, label in enumerate(labels, 1))
    kept = "".join(f"{f'kept {place}':>9}" for place in range(1, len(labels) + 1))
    lines += ["", f"rank    score  predicted{kept}  foreign   merged  recipe"]
    count = max(shown, len(found.merged))
    for rank, one in enumerate(found.ranked[:count], 1):
        lines.append(_row(rank, one))
    if len(found.ranked) > count:
        lines.append(f"… and {len(found.ranked) - count} more, down to {found.ranked[-1].score:.3f}.")
    lines += ["", _time(found)]
    return [*lines, *(f"Note: {note}" for note in found.notes)]


def _row(rank: int, one: Candidate) -> str:
    kept = "".join(f"{_percent(value):>9}" for value in kept_of(one))
    reached = f"{'':>9}" if one.measured is None else f"{one.measured:9.3f}"
    mark = "~" if one.is_sampled else " "
    seconds = f"{one.seconds:7.1f}s" if one.measured is not None else f"{'':>8}"
    same = f" (and {len(one.same)} more that do the same)" if one.same else ""
    foreign = mean_foreign(one)
    told = f"{rank:4d}{reached}{f'{mark}{one.predicted:.3f}':>11}{kept}{foreign:9.2f} {seconds}  {one.name}{same}"
    if one.verdict is None:
        return told
    if one.verdict.error:
        return f"{told}\n      evaluator: no score ({one.verdict.error})"
    external = one.verdict.external
    said = "no score of its own" if external is None else f"{external:.3f}"
    return f"{told}\n      evaluator: {said}, ranked by {one.verdict.final:.3f}"


def _time(found: Tuned) -> str:
    parts = ", ".join(f"{seconds:.1f} s to {phase}" for phase, seconds in found.seconds.items())
    return f"Time: {parts}." if parts else ""


def _percent(value: float) -> str:
    return "–" if value != value else f"{value:.0%}"


def kept_of(one: Candidate) -> list[float]:
    """How much of each LoRA is left on the inputs that it reads: 1 − own; NaN for one of zeros."""
    return (1 - one.errors.own).tolist()


def mean_foreign(one: Candidate) -> float:
    """The mean of what is done on other inputs, relative to the LoRAs."""
    foreign = one.errors.foreign[~one.errors.foreign.isnan()]
    return float(foreign.mean()) if len(foreign) else 0.0


def to_json(found: Tuned, labels: Sequence[str]) -> dict[str, Any]:
    """The sweep as JSON values."""
    return {
        "score": found.score,
        "tried": found.tried,
        "sources": list(labels),
        "seconds": dict(found.seconds),
        "candidates": [_candidate(rank, one) for rank, one in enumerate(found.ranked, 1)],
    }


def _candidate(rank: int, one: Candidate) -> Mapping[str, Any]:
    verdict = one.verdict
    return {
        "rank": rank,
        "name": one.name,
        "same": list(one.same),
        "predicted": one.predicted,
        "spread": one.spread,
        "measured": one.measured,
        "external": verdict and verdict.external,
        "final": verdict and verdict.final,
        "details": verdict and verdict.details,
        "kept": [None if value != value else value for value in kept_of(one)],
        "foreign": [None if value != value else value for value in one.errors.foreign.tolist()],
        "seconds": one.seconds,
        "recipe": one.recipe.to_json(),
    }
