"""TAME: turn a LoRA down where it is large beside the weight it changes (arXiv:2602.02543).

Source: `spec/newer-features.md` §2.2. Departure, by its recommendation: the strength counts, so that a LoRA at a tenth
of its strength is judged by a tenth of its norm.
"""

SMALLEST = 1e-8


def factor(norm: float, base_norm: float, *, layers: float, threshold: float) -> float:
    """What a LoRA's strength on one target is multiplied by: at most 1.

    Args:
        norm: of the LoRA's delta at its strength.
        base_norm: of the base weight.
        layers: 0 leaves everything, 1 brings the delta down to the threshold.
        threshold: the share of the base weight's norm from which it acts.
    """
    share = norm / max(base_norm, SMALLEST)
    return 1.0 if share <= threshold else (threshold / share) ** layers
