"""Spectra and subspaces of deltas, exact from their factors: QR of the thin ones, an SVD of r × r."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..lora.factors import LowRank

LEADING = 8


@dataclass(frozen=True)
class Spectrum:
    """The singular values of a delta, `(r,)` descending, and its leading singular vectors as columns."""

    values: Tensor
    left: Tensor
    right: Tensor

    @property
    def effective_rank(self) -> float:
        """Exponential of the entropy of the singular values (Roy and Vetterli, 2007); 0 for a zero delta."""
        total = float(self.values.sum())
        if total <= 0:
            return 0.0
        shares = self.values / total
        return float(torch.exp(-torch.xlogy(shares, shares).sum()))


def spectrum(delta: LowRank) -> Spectrum:
    """Singular values and the leading singular vectors of a delta at strength 1."""
    up_basis, up_core = torch.linalg.qr(delta.up.float())
    down_basis, down_core = torch.linalg.qr(delta.down.float().T)
    left, values, right = torch.linalg.svd(up_core @ down_core.T, full_matrices=False)
    keep = min(LEADING, len(values))
    return Spectrum(values * abs(delta.scale), up_basis @ left[:, :keep], down_basis @ right[:keep].T)


def overlap(deltas: Sequence[LowRank], spectra: Sequence[Spectrum], gram: Tensor) -> Tensor:
    """How much of each delta lies in the others' leading subspaces.

    Returns:
        `(n, n)` float64: [a, b] is the share of a's energy in b's leading `LEADING` left and right
        directions, the mean of both sides; 1 on the diagonal of a delta of that rank.
    """
    shares = torch.zeros(len(deltas), len(deltas), dtype=torch.float64)
    for a, delta in enumerate(deltas):
        energy = float(gram[a, a])
        if energy <= 0:
            continue
        up, down = delta.up.float(), delta.down.float()
        up_gram, down_gram = up.T @ up, down @ down.T
        for b, other in enumerate(spectra):
            rows = other.left.T @ up
            columns = down @ other.right
            kept = ((rows @ down_gram) * rows).sum() + ((up_gram @ columns) * columns).sum()
            shares[a, b] = float(kept) * delta.scale**2 / (2 * energy)
    return shares.clamp(0, 1)
