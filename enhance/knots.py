"""KnOTS: a basis that all LoRAs of a target share, and their coordinates in it (Stoica et al., arXiv:2410.19735).

`[Δ_1 … Δ_n] = U Σ [V_1 … V_n]`: the basis is `U Σ`, and a merge acts on the `V_k`. The seed's projection `U Uᵀ Δ_k`
gives the inputs back, so the paper's form is taken (`design.md` §3). All of it is done in factors: QR of the ups side
by side, then an eigen-decomposition of a matrix as large as the ranks together.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from ..core.params import Span

SMALLEST = 1e-6  # singular values below, relative to the largest, are rounding: their directions say nothing


def shared(
    factors: Sequence[tuple[Tensor, Tensor]], *, rank_limit: Annotated[int, Span(1, 4096)] = 256
) -> tuple[Tensor, Tensor, float]:
    """The shared basis and the blocks in it: `Δ_k ≈ basis @ blocks[k]`.

    Args:
        factors: for each LoRA its up `(o, r_k)` with the scale in it, and its down `(r_k, c)`, float32.
        rank_limit: the largest rank of the basis.

    Returns:
        `(o, R)`, `(n, R, c)`, and the relative error of all deltas together that the limit costs.
    """
    span, triangle = torch.linalg.qr(torch.cat([up for up, _ in factors], 1).double())
    cores = triangle.split([up.shape[1] for up, _ in factors], 1)
    downs = [down.double() for _, down in factors]
    energy = sum((core @ (down @ down.T) @ core.T for core, down in zip(cores, downs, strict=True)))
    assert isinstance(energy, Tensor)
    values, vectors = torch.linalg.eigh((energy + energy.T) / 2)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    largest = float(values[0])
    if largest == 0.0:
        return span[:, :1].float() * 0, torch.stack([down[:1].float() * 0 for down in downs]), 0.0
    kept = min(int((values > SMALLEST**2 * largest).sum()), rank_limit)
    lost = float((values[kept:].sum() / values.sum()).sqrt()) if kept < len(values) else 0.0
    singular, left = values[:kept].sqrt(), vectors[:, :kept]
    outer = span @ left
    # An SVD leaves the sign of a direction open, and a vote without outcome would go by it.
    signs = torch.sign(outer.gather(0, outer.abs().argmax(0, keepdim=True)))
    left, basis = left * signs, outer * signs * singular
    blocks = [(left.T @ core / singular[:, None]) @ down for core, down in zip(cores, downs, strict=True)]
    return basis.float(), torch.stack(blocks).float(), lost if lost > SMALLEST else 0.0
