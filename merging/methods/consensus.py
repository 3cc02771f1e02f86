"""Consensus: weigh entries by their importance, bring back the norm, keep the effective rank.

Source: seed, Merge Algorithms: Consensus, whose three stages are named after Fisher-weighted averaging
(arXiv:2111.09832, with Δ² for the Fisher information), MAGIC's calibration, and MonoSoup (arXiv:2602.09689; the paper
weighs both parts of the spectrum anew, the seed cuts the smaller one off, and so do we). The seed restores no norm
after the cut: the result is as much softer as the directions that went. Rulings (`design.md` §3): the spectrum is
exact, of any rank, and convolutions are cut like any other matrix. Departure: where the LoRAs all but cancel, stage 1
is all that is done, for what is left is mostly rounding, and would be made as loud as a LoRA.
"""

import torch
from torch import Tensor

from ...core.spectrum import effective_rank, leading, spectrum
from .spherical import ANTIPODAL

PAPER = "Fisher-weighted averaging: arXiv:2111.09832; MonoSoup: arXiv:2602.09689"
DEGREE = 0


def merge(deltas: Tensor, strengths: Tensor) -> Tensor:
    """Stage 1, `Σ w Δ³ / Σ |w| Δ²`: large changes decide, and small ones do not thin them out.

    Args:
        deltas: `(n, t, c)`.
        strengths: `(n,)`.

    Returns:
        `(t, c)`, 0 where all are 0.
    """
    # Relative to the largest of an entry: the squares of small numbers fall out of float32's range.
    largest = deltas.abs().amax(0)
    unit = largest + (1 - torch.sign(largest))
    above, below = torch.zeros_like(largest), torch.zeros_like(largest)
    for delta, strength in zip(deltas, strengths, strict=True):
        part = delta / unit
        weight = part.square() * strength.abs()
        below += weight
        above += weight * part * torch.sign(strength)
    return largest.mul_(above).div_(below + (1 - torch.sign(below)))


def finish(merged: Tensor, strengths: Tensor, *, norms: Tensor) -> tuple[Tensor, Tensor] | Tensor:
    """Stages 2 and 3: the norm becomes `Σ|w|‖Δ‖ / Σ|w|`, then `round(exp(H))` singular values stay.

    `H` is the entropy of the singular values as shares of their sum.

    Args:
        merged: `(o, c)`, of the whole target.
        strengths: `(n,)`.
        norms: `(n,)` float64, of the deltas.

    Returns:
        Factors `(o, r)` and `(r, c)`; or values `(o, c)`, of a single row or column, which has one singular value, and
        where the LoRAs all but cancel: those are `merged` as it is.
    """
    present = float(torch.linalg.vector_norm(merged, dtype=torch.float64))
    shares = strengths.cpu().double().abs()
    expected = float((shares @ norms.cpu().double()) / shares.sum())
    if present <= ANTIPODAL * expected:
        return merged
    factor = expected / present
    if min(merged.shape) == 1:
        return merged * factor
    values, vectors = spectrum(merged)
    up, down = leading(merged, values, vectors, max(1, round(effective_rank(values))))
    return up * factor**0.5, down * factor**0.5
