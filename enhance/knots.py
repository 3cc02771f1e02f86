"""KnOTS: a basis that all LoRAs of a target share, and their coordinates in it.

`[Δ_1 … Δ_n] = U Σ [V_1 … V_n]`: the basis is `U Σ`, a merge acts on the blocks `V_k`, and a linear one changes
nothing by it. Source: seed, Quality Enhancements: KnOTS, for the limit of 256. Departure: the seed's projection
`U Uᵀ Δ_k` gives the inputs back up to that limit and merges nothing in the basis; the paper's form is taken
(`design.md` §3). It is worked out from the factors.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, TypeAlias

import torch
from torch import Tensor

from ..core.params import Span

PAPER = "Stoica et al. 2024, arXiv:2410.19735"
SMALLEST = 1e-6  # relative to the largest singular value; what is smaller is rounding, and no direction


def shared(
    deltas: Sequence[tuple[Tensor, Tensor] | Tensor],
    *,
    rank_limit: Annotated[int, Span(1, 4096)] = 256,
) -> tuple[Tensor, Tensor, float]:
    """The shared basis and the blocks in it: `Δ_k ≈ basis @ blocks[k]`, exact up to the limit.

    Args:
        deltas: of each LoRA its factors, up `(o, r_k)` with the scale in it and down `(r_k, c)`, or all its values
            `(o, c)`; float32.
        rank_limit: the largest rank `R` of the basis; all LoRAs together have no more than the sum of their ranks.

    Returns:
        `(o, R)` and `(n, R, c)`, float32, and the relative error of all deltas together that the limit costs. `R` is
        1 where all deltas are 0.
    """
    parts = [(delta, None) if isinstance(delta, Tensor) else delta for delta in deltas]
    height = parts[0][0].shape[0]
    is_thin = sum(up.shape[1] for up, _ in parts) < height
    left, values, rights = _of_factors(parts) if is_thin else _of_rows(parts)
    count = int((values > SMALLEST * values[0]).sum())
    kept = max(1, min(count, rank_limit))
    lost = float((values[kept:count].square().sum() / values.square().sum()).sqrt()) if kept < count else 0.0
    # A decomposition leaves the sign of a direction open, and a vote without outcome would go by it.
    left = left[:, :kept]
    signs = torch.where(left.gather(0, left.abs().argmax(0, keepdim=True))[0] < 0, -1.0, 1.0).to(left)
    blocks = [(signs[:, None] * right(kept)).float() for right in rights]
    return (left * signs * values[:kept]).float(), torch.stack(blocks), lost


_Part: TypeAlias = tuple[Tensor, Tensor | None]  # without a down, the up is all there is
_Rights: TypeAlias = list[
    Callable[[int], Tensor]
]  # the first rows of each LoRA's right vectors, `(count, c)`


def _of_factors(parts: Sequence[_Part]) -> tuple[Tensor, Tensor, _Rights]:
    """The decomposition by QR of the ups side by side and of each down, and an SVD of the small core."""
    span, triangle = torch.linalg.qr(torch.cat([up for up, _ in parts], 1).double())
    cores, rows = [], []
    for core, (_, down) in zip(triangle.split([up.shape[1] for up, _ in parts], 1), parts, strict=True):
        basis, inner = torch.linalg.qr(down.double().T) if down is not None else (None, None)
        cores.append(core if inner is None else core @ inner.T)
        rows.append(basis)
    left, values, right = torch.linalg.svd(torch.cat(cores, 1), full_matrices=False)
    slices = right.split([core.shape[1] for core in cores], 1)
    return (
        span @ left,
        values,
        [partial(_outward, part, basis) for part, basis in zip(slices, rows, strict=True)],
    )


def _outward(right: Tensor, basis: Tensor | None, count: int) -> Tensor:
    return right[:count] if basis is None else right[:count] @ basis.T


def _of_rows(parts: Sequence[_Part]) -> tuple[Tensor, Tensor, _Rights]:
    """The decomposition by the eigenvalues of `Σ Δ_k Δ_kᵀ`, for ranks that are not small."""
    height = parts[0][0].shape[0]
    energy = torch.zeros(height, height, dtype=torch.float64, device=parts[0][0].device)
    for up, down in parts:
        wide = up.double()
        energy += wide @ wide.T if down is None else wide @ (down.double() @ down.double().T) @ wide.T
    energies, vectors = torch.linalg.eigh((energy + energy.T) / 2)
    values, left = energies.flip(0).clamp(min=0).sqrt(), vectors.flip(1)
    return left, values, [partial(_projected, part, left, values) for part in parts]


def _projected(part: _Part, left: Tensor, values: Tensor, count: int) -> Tensor:
    up, down = part
    inward = left[:, :count].T / torch.where(values[:count] > 0, values[:count], 1.0)[:, None]
    inner = inward @ up.double()
    return inner if down is None else inner @ down.double()
