"""What an evaluator makes of a candidate: its score, and how it counts beside our own (`spec/nodes.md` §2.6)."""

from dataclasses import dataclass
from math import exp, isfinite
from typing import Annotated, Any, TypeAlias

from ..core.params import Choice

CombineMode: TypeAlias = Annotated[str, Choice(("blend", "external_only", "multiply"))]


@dataclass(frozen=True)
class Verdict:
    """What came of asking an evaluator.

    Attributes:
        external: its score, 0 to 1; None if it gave none.
        final: what the candidate is ranked by.
        details: JSON values that it returned beside, or `{"error": …}` with what went wrong.
    """

    external: float | None
    final: float
    details: Any = None

    @property
    def error(self) -> str:
        """What went wrong; empty if nothing did."""
        return (
            str(self.details["error"]) if isinstance(self.details, dict) and "error" in self.details else ""
        )


def combined(own: float, external: float | None, mode: CombineMode, weight: float) -> float:
    """The score that ranks a candidate.

    Args:
        own: ours, at most 0: `own_foreign` and its like.
        external: the evaluator's, clamped to 0 to 1; None, or what is no number, leaves ours.
        mode: `blend` is `(1 − w) · own + w · external`, `external_only` the evaluator's alone, `multiply` their
            product. Ours is brought to 0 to 1, as `exp(own)`.
        weight: `w`, clamped to 0 to 1.

    Returns:
        0 to 1, higher is better.
    """
    ours = exp(min(own, 0.0))
    if external is None or not isfinite(external):
        return ours
    theirs = min(max(external, 0.0), 1.0)
    if mode == "external_only":
        return theirs
    if mode == "multiply":
        return ours * theirs
    share = min(max(weight, 0.0), 1.0)
    return (1 - share) * ours + share * theirs
