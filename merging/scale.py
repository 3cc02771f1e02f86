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
from .blend import Blend
from .recipe import Recipe


@dataclass(frozen=True)
class Branch:
    """The scale of the model's targets, or of the text encoders'.

    Attributes:
        name: `model` or `clip`.
        scale: what every blended coefficient is multiplied by.
        energies: per entry, the norm of its deltas over the branch at its strength, 0 where it takes no part.
        blend_norm: of the blend before the scale.
        sum_norm: of the plain sum of the same LoRAs.
        reason: what the scale is made of, in words.
    """

    name: str
    scale: float
    energies: tuple[float, ...]
    blend_norm: float
    sum_norm: float
    reason: str

    @property
    def title(self) -> str:
        """What the branch is called in sentences."""
        return "model" if self.name == "model" else "text encoders"


def branch_scale(
    name: str, stack: Stack, recipe: Recipe, measured: Sequence[Measured], blends: Sequence[Blend]
) -> Branch:
    """The scale of one branch, from the energies of its planned blend."""
    energy = torch.zeros(len(stack.entries), dtype=torch.float64)
    blend, plain = 0.0, 0.0
    for one, mixed in zip(measured, blends, strict=True):
        if one.target.is_clip != (name == "clip"):
            continue
        own = torch.where(mixed.is_preserved, 0.0, strengths_on(stack, one))
        energy[list(one.entries)] += one.gram.diagonal() * own.square()
        blend += mixed.norm**2
        plain += float(own @ one.gram @ own)
    norms = energy.clamp(min=0).sqrt()
    blend_norm, sum_norm = max(blend, 0.0) ** 0.5, max(plain, 0.0) ** 0.5
    scale, reason = _scale(recipe, norms[norms > 0], blend_norm, sum_norm)
    return Branch(name, scale, tuple(norms.tolist()), blend_norm, sum_norm, reason)


def _scale(recipe: Recipe, norms: Tensor, blend_norm: float, sum_norm: float) -> tuple[float, str]:
    if len(norms) < 2 or blend_norm == 0.0:
        return 1.0, "as it is"
    scale, reasons = 1.0, []
    if recipe.scale_to != "none":
        # Rounded once, at the end: the mean does not depend on the stack's order.
        wanted = fsum(norms.tolist()) / len(norms) if recipe.scale_to == "mean" else float(norms.max())
        scale = min(wanted, sum_norm) / blend_norm
        reasons.append(f"to the {recipe.scale_to} norm of the LoRAs")
        if wanted > sum_norm:
            reasons[-1] += ", but no louder than their plain sum"
    if recipe.auto_strength:
        # The tolerance keeps rounding from showing up as a factor of 0.99999.
        limit = float(norms.max()) / (blend_norm * scale)
        if limit < 1.0 - 1e-9:
            factor = max(limit, recipe.auto_strength_floor)
            scale *= factor
            reasons.append(f"auto-strength {factor:.3f}")
    return scale, "; ".join(reasons) or "as it is"
