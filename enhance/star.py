"""STAR: cut the tail of a LoRA's spectrum, and scale the rest up to make up for it.

Source: `spec/newer-features.md` §2.2. As published, what comes back is the sum of the singular values, so that the
Frobenius norm grows, by half where half of a flat spectrum goes; `restored="frobenius"` keeps that norm instead.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Choice, Span
from ..core.spectrum import leading, spectrum

PAPER = "STAR: arXiv:2502.10339"
OFF = 100.0
ROUNDING = 1e-6  # a share that is reached but for rounding is reached

Eta = Annotated[float, Span(10.0, 100.0)]
Restored = Annotated[str, Choice(("nuclear", "frobenius"))]


def cleaned(
    up: Tensor, down: Tensor, *, eta: Eta = OFF, restored: Restored = "nuclear"
) -> tuple[Tensor, Tensor]:
    """Factors of the cleaned delta, by QR and an SVD of the small core.

    Args:
        up: `(o, r)` with the scale in it, float32.
        down: `(r, c)`.
        eta: how many per cent of the sum of the singular values stay at least; 100 changes nothing.
        restored: the norm that the cut leaves as it was: `nuclear`, the sum of the singular values, or `frobenius`.

    Returns:
        `(o, k)` and `(k, c)`, `k` the fewest directions that hold that share.
    """
    if eta >= OFF:
        return up, down
    rows, up_core = torch.linalg.qr(up.double())
    columns, down_core = torch.linalg.qr(down.double().T)
    left, values, right = torch.linalg.svd(up_core @ down_core.T, full_matrices=False)
    count, gain = _cut(values, eta, restored)
    root = (values[:count] * gain).sqrt()
    return ((rows @ left[:, :count]) * root).to(up), (root[:, None] * (right[:count] @ columns.T)).to(down)


def cleaned_values(
    delta: Tensor, *, eta: Eta = OFF, restored: Restored = "nuclear"
) -> tuple[Tensor, Tensor] | Tensor:
    """The same of a delta that is not in factors: its values as they are where nothing changes, or factors.

    Args:
        delta: `(o, c)` float32.
        eta: as for `cleaned`.
        restored: as for `cleaned`.
    """
    if eta >= OFF or not bool(delta.any()):
        return delta
    values, vectors = spectrum(delta)
    count, gain = _cut(values, eta, restored)
    up, down = leading(delta, values, vectors, count)
    return up * gain**0.5, down * gain**0.5


def _cut(values: Tensor, eta: float, restored: str) -> tuple[int, float]:
    """How many singular values stay, and what they are multiplied by."""
    total = values.sum()
    if float(total) == 0.0:
        return 1, 1.0
    count = 1 + int((values.cumsum(0) < eta / OFF * total * (1 - ROUNDING)).sum())
    kept = values[:count]
    if restored == "nuclear":
        return count, float(total / kept.sum())
    return count, float((values.square().sum() / kept.square().sum()).sqrt())
