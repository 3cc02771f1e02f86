"""Scores: what predicts how much of every LoRA a merge keeps, from weights alone (`design.md` §3a).

`own_foreign = −mean over the LoRAs of √(own² + 0.25 · foreign²)`, with `own_k = ‖(M − Δ_k) P_k‖ / ‖Δ_k‖` on the inputs
that the LoRA reads, `P_k` the projector on its row space, and `foreign_k² = ‖M − Δ_k‖² / ‖Δ_k‖² − own_k²` elsewhere;
`Δ_k` has its strength in it. On two zoos of trained LoRAs it ranks merges as their quality does (Spearman .81 and .69
within a stack); the share 0.25 was chosen on one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.registry import Registry
from ..lora.factors import Delta, LowRank
from ..lora.full import Dense
from .pulls import Pull, row_space

FOREIGN = 0.25


@dataclass(frozen=True)
class Errors:
    """How far a merge is from each LoRA, relative to it, over all targets: `(n,)` float64, NaN for one of zeros.

    Attributes:
        own: on the inputs that it reads.
        foreign: on all others.
    """

    own: Tensor
    foreign: Tensor


def own_foreign(errors: Errors) -> float:
    """The mean over the LoRAs of `−√(own² + 0.25 · foreign²)`: 0 is every LoRA whole, and nothing else."""
    each = (errors.own.square() + FOREIGN * errors.foreign.square()).sqrt()
    return -float(each[~each.isnan()].mean()) if bool((~each.isnan()).any()) else 0.0


def worst(errors: Errors) -> float:
    """As `own_foreign`, of the LoRA that suffers most."""
    each = (errors.own.square() + FOREIGN * errors.foreign.square()).sqrt()
    return -float(each[~each.isnan()].max()) if bool((~each.isnan()).any()) else 0.0


SCORES: Registry[Callable[[Errors], float]] = Registry("score", {"own_foreign": own_foreign, "worst": worst})


class Sums:
    """Errors as they add up, target by target.

    `own` and `foreign` are energies of what a merge does otherwise than a LoRA, `whole` those of the LoRA.
    """

    def __init__(self, count: int) -> None:
        self.own, self.all, self.whole = (torch.zeros(count, dtype=torch.float64) for _ in range(3))

    def combination(self, pull: Pull, coefficients: Tensor) -> None:
        """Add a target where the merge is `Σ c Δ`: exact, from dot products."""
        for place, entry in enumerate(pull.entries):
            error = coefficients.clone()
            error[place] -= pull.strengths[place]
            self.own[entry] += (error @ pull.own[place] @ error).clamp(min=0)
            self.all[entry] += (error @ pull.gram @ error).clamp(min=0)
            self.whole[entry] += pull.strengths[place] ** 2 * pull.gram[place, place]

    def result(self, pull: Pull, merged: Delta, deltas: Sequence[Delta]) -> None:
        """Add a target whose merge was made."""
        for place, entry in enumerate(pull.entries):
            own, everything = _energies(merged, deltas[place], float(pull.strengths[place]))
            self.own[entry] += own
            self.all[entry] += everything
            self.whole[entry] += pull.strengths[place] ** 2 * pull.gram[place, place]

    def rows(self, pull: Pull, merged: Dense, some: Sequence[Dense], deltas: Sequence[Delta]) -> None:
        """Add some rows of a target, scaled up to all of it.

        Args:
            pull: of the target.
            merged: `(t, i)`.
            some: the same rows of the deltas, at strength 1.
            deltas: all of them, for what each reads.
        """
        for place, entry in enumerate(pull.entries):
            error = merged.matrix - float(pull.strengths[place]) * some[place].matrix
            scale = deltas[place].shape[0] / len(error) if len(deltas[place].shape) > 1 else 1.0
            within = torch.linalg.vector_norm(error @ row_space(deltas[place]), dtype=torch.float64)
            self.own[entry] += scale * within**2
            self.all[entry] += scale * torch.linalg.vector_norm(error, dtype=torch.float64) ** 2
            self.whole[entry] += pull.strengths[place] ** 2 * pull.gram[place, place]

    def errors(self) -> Errors:
        """What has been added up."""
        whole = torch.where(self.whole > 0, self.whole, torch.nan)
        own, everything = self.own / whole, self.all / whole
        return Errors(own.sqrt(), (everything - own).clamp(min=0).sqrt())


def _energies(merged: Delta, delta: Delta, strength: float) -> tuple[float, float]:
    """`‖(M − wΔ) P‖²` and `‖M − wΔ‖²`."""
    basis = row_space(delta)
    if isinstance(merged, LowRank) and isinstance(delta, LowRank):
        up = torch.cat([merged.up.float() * merged.scale, delta.up.float() * (-strength * delta.scale)], 1)
        down = torch.cat([merged.down.float(), delta.down.float()])
        outer, inner = (up.T @ up).double(), down @ basis
        own = float((outer * (inner @ inner.T)).sum().clamp(min=0))
        return own, float((outer * (down @ down.T)).sum().clamp(min=0))
    error = merged.flat() - strength * delta.flat()
    within = torch.linalg.vector_norm(error @ basis, dtype=torch.float64)
    return float(within) ** 2, float(torch.linalg.vector_norm(error, dtype=torch.float64)) ** 2
