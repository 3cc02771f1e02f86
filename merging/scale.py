"""One factor for the whole blend: the global scale and auto-strength, from exact energies.

Model and text encoders are measured apart. Preserved LoRAs are neither counted nor scaled (`design.md` §3,
§3a).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import torch
from torch import Tensor

from ..analysis.similarity import Measured, strengths_on
from ..lora.stack import Stack
from .balance import balanced
from .blend import Blend
from .recipe import Recipe


@dataclass(frozen=True)
class Branch:
    """The scale of the model's targets, or of the text encoders'.

    Attributes:
        name: `model` or `clip`.
        scale: what every blended coefficient is multiplied by.
        factors: per entry, what its strength is multiplied by before the blend; 1 where nothing balances them.
        energies: per entry, the norm of its deltas over the branch at its strength, 0 where it takes no part.
        blend_norm: of the blend before the scale.
        sum_norm: of the plain sum of the same LoRAs.
        reason: what the scale is made of, in words.
    """

    name: str
    scale: float
    factors: tuple[float, ...]
    energies: tuple[float, ...]
    blend_norm: float
    sum_norm: float
    reason: str

    @property
    def title(self) -> str:
        """What the branch is called in sentences."""
        return "model" if self.name == "model" else "text encoders"


def branch_gram(name: str, stack: Stack, measured: Sequence[Measured]) -> Tensor:
    """Dot products of the entries over a branch, at their strengths; 0 for preserved ones: `(N, N)` float64."""
    total = torch.zeros(len(stack.entries), len(stack.entries), dtype=torch.float64)
    is_preserved = torch.tensor([entry.preserve for entry in stack.entries])
    for one in measured:
        if one.target.is_clip == (name == "clip"):
            places = torch.tensor(one.entries)
            own = torch.where(is_preserved[places], 0.0, strengths_on(stack, one))
            total[places[:, None], places] += one.gram * own[:, None] * own
    return total


def branch_factors(stack: Stack, recipe: Recipe, gram: Tensor) -> tuple[float, ...]:
    """What the automatic choice multiplies the strengths by, one number an entry; 1 for all others' recipes."""
    factors = torch.ones(len(stack.entries), dtype=torch.float64)
    # By content, so that no sum over them depends on the stack's order.
    playing = sorted(
        torch.nonzero(gram.diagonal() > 0).flatten().tolist(),
        key=lambda entry: (
            stack.entries[entry].file.sha256,
            stack.entries[entry].conflict_mode,
            stack.entries[entry].key_filter,
        ),
    )
    if recipe.is_balanced and len(playing) > 1:
        norms = gram.diagonal()[playing].sqrt()
        factors[playing] = balanced(gram[playing][:, playing], _wanted(recipe, norms))
    return tuple(factors.tolist())


def branch_scale(
    name: str,
    recipe: Recipe,
    gram: Tensor,
    factors: tuple[float, ...],
    measured: Sequence[Measured],
    blends: Sequence[Blend],
) -> Branch:
    """The scale of one branch, from the energies of its planned blend.

    Args:
        name: `model` or `clip`.
        recipe: what is asked.
        gram: of `branch_gram`.
        factors: of `branch_factors`; the blends have them in.
        measured: of all targets.
        blends: of all targets.
    """
    # Rounded once, at the end: the sum does not depend on anything but the targets.
    energies = (
        mixed.norm**2
        for one, mixed in zip(measured, blends, strict=True)
        if one.target.is_clip == (name == "clip")
    )
    norms = gram.diagonal().clamp(min=0).sqrt()
    blend_norm, sum_norm = fsum(energies) ** 0.5, max(fsum(gram.flatten().tolist()), 0.0) ** 0.5
    scale, reason = _scale(recipe, norms[norms > 0], blend_norm, sum_norm)
    return Branch(name, scale, factors, tuple(norms.tolist()), blend_norm, sum_norm, reason)


def _wanted(recipe: Recipe, norms: Tensor) -> float:
    # Rounded once, at the end: the mean does not depend on the stack's order.
    return fsum(norms.tolist()) / len(norms) if recipe.scale_to == "mean" else float(norms.max())


def _scale(recipe: Recipe, norms: Tensor, blend_norm: float, sum_norm: float) -> tuple[float, str]:
    if len(norms) < 2 or blend_norm == 0.0:
        return 1.0, "as it is"
    scale, reasons = 1.0, []
    if recipe.scale_to != "none":
        wanted = _wanted(recipe, norms)
        # A balanced blend has its norm already; only targets that TIES takes may differ.
        scale = 1.0 if recipe.is_balanced else min(wanted, sum_norm) / blend_norm
        reasons.append(f"to the {recipe.scale_to} norm of the LoRAs")
        if wanted > sum_norm:
            reasons[-1] += ", but no louder than their plain sum"
    if recipe.auto_strength and scale > 0.0:
        # The tolerance keeps rounding from showing up as a factor of 0.99999.
        limit = float(norms.max()) / (blend_norm * scale)
        if limit < 1.0 - 1e-9:
            factor = max(limit, recipe.auto_strength_floor)
            scale *= factor
            reasons.append(f"auto-strength {factor:.3f}")
    return scale, "; ".join(reasons) or "as it is"
