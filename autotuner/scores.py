"""Scores: what predicts how much of every LoRA a merge keeps, from weights alone (`design.md` §3a).

All of them read two numbers a LoRA, over all its targets, relative to the LoRA at its strength: how far the merge is
from it on the inputs that it reads, `own_k = ‖(M − Δ_k) P_k‖ / ‖Δ_k‖` with `P_k` the projector on its row space, and
elsewhere, `foreign_k² = ‖M − Δ_k‖² / ‖Δ_k‖² − own_k²`. Higher scores are better.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.registry import Registry

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

    @staticmethod
    def of(own: Tensor, everything: Tensor, whole: Tensor) -> "Errors":
        """From energies: of the errors on a LoRA's inputs, of the errors anywhere, and of the LoRA."""
        whole = torch.where(whole > 0, whole, torch.nan)
        near, far = own / whole, everything / whole
        return Errors(near.clamp(min=0).sqrt(), (far - near).clamp(min=0).sqrt())


def own_foreign(errors: Errors) -> float:
    """The mean over the LoRAs of `−√(own² + 0.25 · foreign²)`: 0 is every LoRA whole, and nothing else.

    On two zoos of trained LoRAs it ranks merges as their quality does: Spearman .81 and .69 within a stack, regret of
    its first choice .06 and .04 (`design.md` §3a); the share 0.25 was chosen on one of them. Among recipes that are all
    brought to a sensible norm it ranks less well: .58 and .36 over fifty-five of them (`docs/autotuner.md`).
    """
    each = _each(errors)
    return -float(each.mean()) if len(each) else 0.0


def worst(errors: Errors) -> float:
    """As `own_foreign`, of the LoRA that suffers most.

    It ranks less well than `own_foreign` (.47 and .25 over the same fifty-five recipes).
    """
    each = _each(errors)
    return -float(each.max()) if len(each) else 0.0


def _each(errors: Errors) -> Tensor:
    each = (errors.own.square() + FOREIGN * errors.foreign.square()).sqrt()
    return each[~each.isnan()]


SCORES: Registry[Callable[[Errors], float]] = Registry("score", {"own_foreign": own_foreign, "worst": worst})
