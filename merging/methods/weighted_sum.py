"""Weighted sum: every delta times its strength, added up.

Source: seed, Merge Algorithms: Weighted Sum.
"""

from torch import Tensor

PAPER = "Task arithmetic: Ilharco et al. 2022, arXiv:2212.04089"
DEGREE = 1


def coefficients(gram: Tensor, strengths: Tensor) -> Tensor:
    """The strengths themselves; exact, and as loud as the LoRAs are together.

    Args:
        gram: `(n, n)`, not looked at.
        strengths: `(n,)` float64.
    """
    return strengths.clone()
