"""Normalised sum: `Σ w Δ / √(Σ w²)`, the sum at the norm of one LoRA where the LoRAs are unrelated.

Source: `spec/engine.md` §8.1.
"""

from torch import Tensor

DEGREE = 0


def coefficients(gram: Tensor, strengths: Tensor) -> Tensor:
    """Coefficients of the normalised sum.

    Args:
        gram: `(n, n)` float64; not looked at.
        strengths: `(n,)` float64, none 0.

    Returns:
        `(n,)`.
    """
    return strengths / strengths.norm()
