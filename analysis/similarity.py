"""Norms, dot products and cosines of deltas, exact from their factors.

`⟨Δ_i, Δ_j⟩ = scale_i · scale_j · Σ (U_iᵀU_j) ∘ (D_i D_jᵀ)`: the cost is that of `(o + i) · R²`, not of `o ·
i` (`design.md` §1.1). Products are float32, sums float64.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from ..lora.factors import Delta, LowRank
from ..lora.full import Dense, Kron
from ..lora.stack import Stack
from ..lora.target import Target

ENTRIES = 1 << 18  # of a full delta that are widened at a time


@dataclass(frozen=True)
class Measured:
    """What was measured on one target.

    Attributes:
        target: the target.
        entries: which entries of the stack touch it, in the order of the Gram matrix.
        gram: `(n, n)` float64, dot products of the deltas at strength 1.
        size: the number of entries of the weight.
        conflict: `(n, n)` float64, the share of entries with opposite signs; None if it was not sampled.
        overlap: `(n, n)` float64, [a, b] the share of a's energy in b's leading subspace; None if not asked
        for.
        effective_rank: per delta, the exponential of the entropy of its spectrum; empty if not asked for.
    """

    target: Target
    entries: tuple[int, ...]
    gram: Tensor
    size: int
    conflict: Tensor | None = None
    overlap: Tensor | None = None
    effective_rank: tuple[float, ...] = ()


def gram_matrix(deltas: Sequence[Delta]) -> Tensor:
    """The dot products of deltas on one target, each the same to the bit whatever the other deltas are.

    Returns:
        `(n, n)` float64. A row is not finite if its factors are not.
    """
    gram = torch.zeros(len(deltas), len(deltas), dtype=torch.float64)
    wide = [delta.to(torch.float32) if isinstance(delta, LowRank) else delta for delta in deltas]
    for a, one in enumerate(wide):
        for b, other in enumerate(wide[: a + 1]):
            gram[a, b] = gram[b, a] = dot(one, other)
    return gram


def dot(one: Delta, other: Delta) -> float:
    """The dot product of two deltas on one target, in the cheapest exact way."""
    found = _dot(one, other, torch.float32)
    # Sums of the largest numbers leave float32 before they leave what a file may hold.
    return found if isfinite(found) else _dot(one, other, torch.float64)


def _dot(one: Delta, other: Delta, dtype: torch.dtype) -> float:
    if isinstance(other, LowRank) and not isinstance(one, LowRank):
        one, other = other, one
    if isinstance(one, LowRank) and isinstance(other, LowRank):
        ups = one.up.T.to(dtype) @ other.up.to(dtype)
        products = ups.double() * (one.down.to(dtype) @ other.down.T.to(dtype))
        return float(products.sum()) * one.scale * other.scale
    if isinstance(one, Kron) and isinstance(other, Kron) and one.a.shape == other.a.shape:
        outer = float((one.a.double() * other.a.double()).sum())
        return outer * float((one.b.double() * other.b.double()).sum()) * one.scale * other.scale
    if isinstance(one, LowRank):
        # ⟨U D, X⟩ = Σ (Uᵀ X) ∘ D
        product = (one.up.T.to(dtype) @ other.flat().to(dtype)).double() * one.down.double()
        return float(product.sum()) * one.scale
    return float((one.flat().double() * other.flat()).sum())


def dots(one: Delta, others: Sequence[Delta]) -> tuple[float, ...]:
    """The dot products of one delta with others; what is of full rank is widened once, a few rows at a time."""
    thin = [other for other in others if isinstance(other, LowRank)]
    if not isinstance(one, Dense) or len(thin) < len(others):
        return tuple(dot(one, other) for other in others)
    matrix = one.matrix
    products = [torch.zeros(other.rank, matrix.shape[1]) for other in thin]
    step = max(1, ENTRIES // max(matrix.shape[1], 1))
    for start in range(0, len(matrix), step):
        rows = matrix[start : start + step].float()
        for product, other in zip(products, thin, strict=True):
            product.addmm_(other.up[start : start + step].T.float(), rows)
    found = [
        float((product.double() * other.down).sum()) * one.scale * other.scale
        for product, other in zip(products, thin, strict=True)
    ]
    return tuple(
        value if isfinite(value) else dot(one, other) for value, other in zip(found, others, strict=True)
    )


def strengths_on(stack: Stack, one: Measured) -> Tensor:
    """The strengths of the entries that touch a target, on its branch: `(n,)` float64."""
    return one.gram.new_tensor([stack.entries[entry].strength_on(one.target) for entry in one.entries])


def norms(stack: Stack, measured: Iterable[Measured]) -> Tensor:
    """The norm of each entry's deltas over these targets, at its strengths; float64, one number an entry."""
    energy = torch.zeros(len(stack.entries), dtype=torch.float64)
    for one in measured:
        energy[list(one.entries)] += one.gram.diagonal() * strengths_on(stack, one).square()
    return energy.clamp(min=0).sqrt()


def cosines(gram: Tensor) -> Tensor:
    """The cosines of a Gram matrix: `(n, n)`, 0 where a delta is zero."""
    norms = gram.diagonal().clamp(min=0).sqrt()
    bottom = norms[:, None] * norms
    return torch.where(bottom > 0, gram / bottom.clamp(min=1e-300), 0).clamp(-1, 1)
