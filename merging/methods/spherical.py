"""What SLERP and the Karcher mean share: directions and lengths of deltas, known by their Gram matrix."""

import torch
from torch import Tensor

# Combined norm over the norms of the parts; below, a blend is the rest of a cancellation (`design.md` §3).
ANTIPODAL = 0.05


def signed(gram: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The Gram matrix of the deltas with the signs of their strengths, shares of the strength, and signs.

    Returns:
        `(n, n)`, `(n,)` adding up to 1, `(n,)` of ±1.
    """
    signs = torch.where(strengths < 0, -1.0, 1.0).to(gram.dtype)
    shares = strengths.abs() / strengths.abs().sum()
    return gram * signs[:, None] * signs, shares, signs


def combined_norm(gram: Tensor, coefficients: Tensor) -> float:
    """The norm of `Σ coefficient · delta`."""
    return float((coefficients @ gram @ coefficients).clamp(min=0).sqrt())


def expected_norm(gram: Tensor, shares: Tensor) -> float:
    """The weighted mean of the norms of the parts."""
    return float(shares @ gram.diagonal().clamp(min=0).sqrt())


def is_antipodal(gram: Tensor, shares: Tensor) -> bool:
    """Whether deltas in these positive shares all but cancel; no direction is left to keep the norm of."""
    return combined_norm(gram, shares) < ANTIPODAL * expected_norm(gram, shares)


def directions(gram: Tensor) -> Tensor:
    """The cosines of deltas none of which is zero: the Gram matrix of their directions."""
    norms = gram.diagonal().clamp(min=0).sqrt()
    return gram / (norms[:, None] * norms)


def at_norm(gram: Tensor, coefficients: Tensor, norm: float) -> Tensor:
    """The coefficients, scaled so that the combination has this norm; unchanged if it is zero."""
    present = combined_norm(gram, coefficients)
    return coefficients * (norm / present) if present > 0 else coefficients
