"""Normalised sum: the sum over the root of the squared strengths; of unrelated LoRAs, as loud as one of them.

Source: `spec/engine.md` §8.1. The length stays as long as the LoRAs are orthogonal and alike in norm; LoRAs that
share a direction come out louder than each of them, by up to the root of their number.
"""

import torch
from torch import Tensor

PAPER = ""
DEGREE = 0


def coefficients(gram: Tensor, strengths: Tensor) -> Tensor:
    """`w_k / √(Σ w²)`.

    Args:
        gram: `(n, n)`, not looked at.
        strengths: `(n,)` float64.
    """
    length = torch.linalg.vector_norm(strengths)
    return strengths / length if length > 0 else torch.zeros_like(strengths)
