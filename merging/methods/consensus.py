"""Consensus: weigh entries by their importance, calibrate the norm, keep the effective rank.

Source: seed, Merge Algorithms: Consensus. Its stages are named after Fisher-weighted averaging (arXiv:2111.09832, with
`Δ²` for the Fisher information), MAGIC's calibration and MonoSoup (arXiv:2602.09689; the paper weighs both parts of the
spectrum anew, the seed cuts). Rulings (`design.md` §3): the spectrum is exact and of any rank, convolutions included.
"""

import torch
from torch import Tensor

from ...core.linalg import effective_factors
from .spherical import ANTIPODAL

DEGREE = 0


def merge(deltas: Tensor, strengths: Tensor) -> Tensor:
    """Stage 1: `Σ w Δ³ / Σ |w| Δ²` in every entry, 0 where all are 0.

    Args:
        deltas: `(n, t, c)`.
        strengths: `(n,)`.
    """
    # Relative to the largest of an entry: squares of small numbers would fall out of float32's range.
    largest = deltas.abs().amax(0)
    relative = deltas / largest.clamp(min=torch.finfo(torch.float32).tiny)
    weights = relative.square() * strengths.abs()[:, None, None]
    below = weights.sum(0)
    top = (weights * relative * torch.sign(strengths)[:, None, None]).sum(0)
    return torch.where(below > 0, largest * top / below.clamp(min=torch.finfo(torch.float32).tiny), 0)


def finish(merged: Tensor, strengths: Tensor, *, norms: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """Stages 2 and 3: bring the norm to the weighted mean of the inputs', then keep the effective rank.

    Args:
        merged: `(o, c)`.
        strengths: `(n,)`.
        norms: `(n,)` float64, of the deltas.

    Returns:
        Factors `(o, r)` and `(r, c)`, `r` the exponential of the spectrum's entropy; `(1, c)` for a single row.
        Where the deltas all but cancel, the result as it is: there is no norm to bring it to.
    """
    shares = strengths.abs().double().cpu() / strengths.abs().double().sum().cpu()
    present = float(torch.linalg.vector_norm(merged, dtype=torch.float64))
    expected = float(shares @ norms)
    if present <= ANTIPODAL * expected:
        # What is left of a cancellation would be lifted to a LoRA's norm, and its rounding with it.
        return merged
    calibrated = merged * (expected / present)
    return calibrated if min(merged.shape) == 1 else effective_factors(calibrated)
