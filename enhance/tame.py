"""TAME: turn a LoRA down where it is large beside the weight that it changes.

Source: `spec/newer-features.md` §2.2. Departure, by its recommendation: the strength counts, so that a LoRA at a tenth
of its strength is judged by a tenth of its norm.
"""

from typing import Annotated

from ..core.params import Span

PAPER = "TAME: arXiv:2602.02543"
SMALLEST = 1e-8


def factor(
    norm: float,
    base_norm: float,
    *,
    layers: Annotated[float, Span(0.0, 1.0)] = 0.0,
    threshold: Annotated[float, Span(0.05, 2.0)] = 0.3,
) -> float:
    """What a LoRA's strength on one target is multiplied by: `(threshold / share)^layers`, at most 1.

    Args:
        norm: of the delta at its strength, `|w|‖Δ‖`.
        base_norm: of the whole base weight.
        layers: 0 leaves every LoRA alone, 1 brings it down to the threshold.
        threshold: the share of the base weight's norm from which a LoRA is turned down.
    """
    share = norm / max(base_norm, SMALLEST)
    return (threshold / share) ** layers if share > threshold else 1.0
