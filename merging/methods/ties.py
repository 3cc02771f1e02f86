"""TIES: trim, elect a sign for every entry, average the LoRAs that have it.

Source: seed, Merge Algorithms: TIES, and Column-Wise Conflict Resolution. The trim is a sparsifier of its own, which
any other may replace. A LoRA of negative strength is turned round first, and is then one of positive strength.
Departures, by `design.md` §3:

- `total` votes count what is merged, `w Δ`; the seed counts Δ alone, so that a LoRA at a tenth of its strength could
  turn the others away. Where all strengths are of one size there is no difference.
- A vote without outcome goes to the sign that wins most entries of the target, as in the paper; the seed leaves it
  open, and a plus throughout would favour one direction.
- The seed divides by `Σ|w|` of those that agree, the paper by their number: `divisor` has both.
"""

import torch
from torch import Tensor

from ...core.device import double, total
from ..recipe_words import Divisor, Unit, Vote

PAPER = "Yadav et al. 2023, arXiv:2306.01708"
SPARSIFIER = "trim"
RATIO = 2.0 * (1 + 1e-6)  # norms that are exactly twofold, but for rounding, are not more than twofold


def degree(*, divisor: Divisor = "mass") -> int:
    """How the result goes with a common factor of the strengths: 0 not at all, 1 along with it.

    Args:
        divisor: as for `merge`.
    """
    return 1 if divisor == "count" else 0


def settled_vote(vote: str, gram: Tensor, strengths: Tensor) -> str:
    """The vote that `auto` stands for: `total` where the LoRAs, at their strengths, differ more than twofold.

    Args:
        vote: as for `merge`; what is not `auto` is settled already.
        gram: `(n, n)`, dot products of the deltas at strength 1.
        strengths: `(n,)`.
    """
    if vote != "auto":
        return vote
    norms = strengths.abs() * gram.diagonal().clamp(min=0).sqrt()
    norms = norms[norms > 0]
    return "total" if len(norms) and float(norms.max()) > RATIO * float(norms.min()) else "frequency"


def partial(deltas: Tensor, strengths: Tensor, *, vote: Vote = "auto", unit: Unit = "entry") -> Tensor:
    """By how many elections plus wins over minus in these rows; float64, and exact.

    Args:
        deltas: `(n, t, c)`, trimmed.
        strengths: `(n,)`.
        vote: as for `merge`.
        unit: as for `merge`.

    Raises:
        ValueError: `vote` is not settled.
    """
    # Of signs, single precision adds up a row exactly: it has fewer than 2²⁴ of them.
    return total(_elected(deltas, strengths, vote, unit).sum(1))


def merge(
    deltas: Tensor,
    strengths: Tensor,
    *,
    vote: Vote = "auto",
    divisor: Divisor = "mass",
    unit: Unit = "entry",
    statistics: Tensor,
) -> Tensor:
    """Average, in every entry, the LoRAs that have the elected sign there.

    Args:
        deltas: `(n, t, c)`, trimmed.
        strengths: `(n,)`.
        vote: `frequency` gives each LoRA one vote, `total` as many as it changes; `auto` takes `total` where one LoRA
            is more than twice as large as another.
        divisor: `mass` divides by the strengths of those that agree, `count` by their number.
        unit: `entry` elects every entry by itself; `row` elects an output's whole row by its sum, and a LoRA takes
            part in all of it or in nothing.
        statistics: the sum of `partial` over the whole target.

    Returns:
        `(t, c)`, 0 where nobody takes part.

    Raises:
        ValueError: `vote` is not settled; see `settled_vote`.
    """
    elected = _elected(deltas, strengths, vote, unit)
    # What is 0 becomes the majority's sign. Signs are multiplied and added: masks take ten times as long on a CPU.
    majority = torch.where(statistics < 0, -1.0, 1.0).to(elected)
    elected = (elected + majority).sub_(elected.abs().mul_(majority))
    above, below = torch.zeros_like(deltas[0]), torch.zeros_like(elected)
    for delta, strength in zip(deltas, strengths, strict=True):
        push = delta * strength
        if unit == "row":
            agrees = (torch.sign(_ballot(delta, unit)).to(push) * torch.sign(strength) == elected).to(push)
            push *= agrees
        else:
            push.mul_(elected).clamp_(min=0)
            agrees = torch.sign(push)
        above += push
        below += agrees.mul_(strength.abs()) if divisor == "mass" else agrees
    if unit == "entry":
        above *= elected
    return above.div_(below + (1 - torch.sign(below)))


def _elected(deltas: Tensor, strengths: Tensor, vote: str, unit: str) -> Tensor:
    """The sign that wins, float32 `(t, c)`, or `(t, 1)` for rows; 0 where none does."""
    if vote == "auto":
        raise ValueError("the vote `auto` must be settled for the whole target first: see `settled_vote`")
    first = _ballot(deltas[0], unit)
    if vote == "frequency":
        counts = torch.zeros_like(first).to(deltas)
        for delta, strength in zip(deltas, strengths, strict=True):
            counts += torch.sign(_ballot(delta, unit)).to(deltas).mul_(torch.sign(strength))
        return torch.sign(counts)
    # Double precision adds what is single exactly, in any order: a tie is a tie for every order of the stack.
    votes = double(torch.zeros_like(first))
    for delta, strength in zip(deltas, strengths, strict=True):
        votes += double(delta * strength) if unit == "entry" else _ballot(delta, unit) * double(strength)
    return torch.sign(votes).to(deltas)


def _ballot(delta: Tensor, unit: str) -> Tensor:
    return delta if unit == "entry" else total(delta, 1, keepdim=True)
