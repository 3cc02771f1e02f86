"""TIES: trim, elect a sign for every entry, average those that agree with it (Yadav et al., arXiv:2306.01708).

Source: seed, Merge Algorithms: TIES. The trim is a sparsifier (`sparsify/trim.py`), which any other may replace.
Departures, all by `design.md` §3 or the paper:

- a negative strength turns its LoRA around before the vote;
- `total` votes weigh `w · Δ`, what is merged, where the seed weighs Δ alone; equal for equal strengths;
- a vote without outcome goes to the sign that won most entries of the target, as in the paper, not to plus;
- the divisor is the seed's `Σ|w|` of those that agree, or the paper's count of them (`divisor="count"`).
"""

import torch
from torch import Tensor

from ..recipe_words import Divisor, Unit, Vote

SPARSIFIER = "trim"
TWOFOLD = 2.0 * (1 + 1e-6)  # exactly twice, but for rounding, is not more than twice


def degree(*, divisor: Divisor = "mass") -> int:
    """0 if the result is blind to a common factor of the strengths, 1 if it grows with it."""
    return 1 if divisor == "count" else 0


def settled_vote(vote: str, gram: Tensor, strengths: Tensor) -> str:
    """The vote that `auto` stands for: by mass where the LoRAs, at their strengths, differ more than twofold.

    Args:
        vote: `auto`, or a vote that is settled.
        gram: `(n, n)`, dot products of the deltas at strength 1.
        strengths: `(n,)`.
    """
    if vote != "auto":
        return vote
    loud = strengths.abs() * gram.diagonal().clamp(min=0).sqrt()
    loud = loud[loud > 0]
    return "total" if len(loud) and float(loud.max()) > TWOFOLD * float(loud.min()) else "frequency"


def partial(deltas: Tensor, strengths: Tensor, *, vote: Vote = "total", unit: Unit = "entry") -> Tensor:
    """How far plus wins over minus in these rows: the sum of the elected signs, float64."""
    return _elected(deltas, strengths, vote, unit).sum(dtype=torch.float64)


def merge(
    deltas: Tensor,
    strengths: Tensor,
    *,
    vote: Vote = "total",
    divisor: Divisor = "mass",
    unit: Unit = "entry",
    statistics: Tensor,
) -> Tensor:
    """Average, in every entry, the LoRAs that have its elected sign.

    Args:
        deltas: `(n, t, c)`, trimmed.
        strengths: `(n,)`.
        vote: `frequency` gives each LoRA one vote, `total` as many as it pushes.
        divisor: `mass`, the strengths of those that agree, or `count`, how many they are.
        unit: `entry`, or `row`: a whole row is elected by its sum, and takes part or does not (column-wise conflict
            resolution of the seed; a row's inputs work together).
        statistics: the sum of `partial` over the whole target.
    """
    majority = torch.where(statistics < 0, -1.0, 1.0).to(deltas)
    elected = _elected(deltas, strengths, vote, unit)
    elected = torch.where(elected == 0, majority, elected)
    turned = deltas * torch.sign(strengths)[:, None, None]
    votes = turned.sum(2, keepdim=True) if unit == "row" else turned
    agrees = torch.sign(votes) == elected
    weights = strengths.abs()[:, None, None]
    total = torch.where(agrees, turned * weights, 0).sum(0)
    if divisor == "count":
        below = agrees.sum(0).to(deltas)
    else:
        below = torch.where(agrees, weights, 0).sum(0)
    return torch.where(below > 0, total / below.clamp(min=torch.finfo(torch.float32).tiny), 0)


def _elected(deltas: Tensor, strengths: Tensor, vote: str, unit: str) -> Tensor:
    """The sign that wins, `(t, c)`, or `(t, 1)` for rows; 0 where none does."""
    if unit == "row":
        deltas = deltas.sum(2, keepdim=True)
    if vote == "frequency":
        return torch.sign((torch.sign(deltas) * torch.sign(strengths)[:, None, None]).sum(0))
    return torch.sign((deltas * strengths[:, None, None]).sum(0))
