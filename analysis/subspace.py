"""Spectra and subspaces of deltas, exact from their factors: QR of the thin ones, an SVD of r × r."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..lora.factors import Delta, LowRank
from ..lora.full import Kron

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


def spectrum(delta: Delta) -> Spectrum:
    """Singular values and the leading singular vectors of a delta at strength 1."""
    if isinstance(delta, LowRank):
        up_basis, up_core = torch.linalg.qr(delta.up.float())
        down_basis, down_core = torch.linalg.qr(delta.down.float().T)
        left, values, right = torch.linalg.svd(up_core @ down_core.T, full_matrices=False)
        left, right = up_basis @ left[:, :LEADING], down_basis @ right[:LEADING].T
    elif isinstance(delta, Kron):
        left, values, right = _kron_svd(delta)
    else:
        left, values, rows = torch.linalg.svd(delta.matrix.float(), full_matrices=False)
        left, right = left[:, :LEADING], rows[:LEADING].T
    return Spectrum(values * abs(delta.scale), left, right)


def _kron_svd(delta: Kron) -> tuple[Tensor, Tensor, Tensor]:
    """The singular values of a Kronecker product are the products of those of its factors, its vectors too."""
    a_left, a_values, a_right = torch.linalg.svd(delta.a.float(), full_matrices=False)
    b_left, b_values, b_right = torch.linalg.svd(delta.b.float(), full_matrices=False)
    values, order = torch.sort(torch.outer(a_values, b_values).flatten(), descending=True)
    chosen = [divmod(int(at), len(b_values)) for at in order[:LEADING]]
    left = torch.stack([torch.kron(a_left[:, a], b_left[:, b]) for a, b in chosen], 1)
    right = torch.stack([torch.kron(a_right[a], b_right[b]) for a, b in chosen], 1)
    return left, values, right


def overlap(deltas: Sequence[Delta], spectra: Sequence[Spectrum], gram: Tensor) -> Tensor:
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
        kept = _thin_energies if isinstance(delta, LowRank) else _full_energies
        shares[a] = torch.tensor(kept(delta, spectra), dtype=torch.float64) / (2 * energy)
    return shares.clamp(0, 1)


def _thin_energies(delta: Delta, spectra: Sequence[Spectrum]) -> list[float]:
    assert isinstance(delta, LowRank)
    up, down = delta.up.float(), delta.down.float()
    up_gram, down_gram = up.T @ up, down @ down.T
    found = []
    for other in spectra:
        rows, columns = other.left.T @ up, down @ other.right
        kept = ((rows @ down_gram) * rows).sum() + ((up_gram @ columns) * columns).sum()
        found.append(float(kept) * delta.scale**2)
    return found


def _full_energies(delta: Delta, spectra: Sequence[Spectrum]) -> list[float]:
    flat = delta.flat()
    return [
        float((other.left.T @ flat).square().sum() + (flat @ other.right).square().sum()) for other in spectra
    ]
