"""What an evaluator answered: a number, `{"score": …, "details": …}`, or nothing (`spec/nodes.md` §2.6)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ..core.text import whole
from .verdict import CombineMode, Verdict, combined

SHOWN = 300  # characters of what is no score


@dataclass(frozen=True)
class Answer:
    """A score, clamped to 0 to 1, or None; and JSON values beside it, `{"error": …}` where something went wrong."""

    score: float | None
    details: Any = None

    def verdict(self, own: float, mode: CombineMode, weight: float) -> Verdict:
        """How the answer counts beside our own score."""
        return Verdict(self.score, combined(own, self.score, mode, weight), self.details)


def failure(text: str) -> Answer:
    """No score, and why."""
    return Answer(None, {"error": whole(text)})


def answer_of(returned: object) -> Answer:
    """The answer in what an evaluator returned."""
    if isinstance(returned, Mapping):
        score, details = returned.get("score"), returned.get("details")
        if "score" not in returned:
            return failure(f"It returned no `score`: {_shown(dict(returned))}.")
    else:
        score, details = returned, None
    details, problem = _plain(details)
    if score is None:
        return Answer(None, details)
    try:
        number = float(score)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is a tensor of several numbers
        return failure(f"It returned no number as its score: {_shown(score)}.")
    if not isfinite(number):
        return failure(f"It returned {number} as its score.")
    return Answer(min(max(number, 0.0), 1.0), {"error": problem} if problem else details)


def answer_in(text: str) -> Answer:
    """The answer that a program printed: its last line, a number or a JSON object."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return failure("It printed nothing. Its last line should be a score from 0 to 1.")
    last = lines[-1]
    try:
        decoded = json.loads(last)
    except (ValueError, RecursionError):
        decoded = last
    if isinstance(decoded, list):
        return failure(f"Its last line is no score and no JSON object: {_shown(last)}.")
    return answer_of(decoded)


def _plain(details: object) -> tuple[Any, str]:
    """Details as JSON values, or the sentence why they are none."""
    try:
        return json.loads(json.dumps(details, allow_nan=False)), ""
    except (TypeError, ValueError, RecursionError) as problem:
        return None, whole(f"Its details are no JSON values and were left out ({problem}).")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
