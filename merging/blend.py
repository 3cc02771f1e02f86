"""The blend on one target: which method, why, and its coefficients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..analysis.similarity import Measured, cosines
from ..lora.stack import Stack
from .methods import METHODS
from .recipe import AUTO, Recipe


def mean_strength(strengths: Tensor) -> float:
    """`S(w) = Σw² / Σ|w|`: 1 for strengths of ±1, `|w|` for one LoRA, and twice for twice the strengths."""
    total = float(strengths.abs().sum())
    return float(strengths.square().sum()) / total if total > 0 else 0.0


@dataclass(frozen=True)
class Blend:
    """The coefficients on one target before any scale: preserved LoRAs at strength, the others merged."""

    coefficients: Tensor
    is_preserved: Tensor
    method: str
    reason: str


def blend_group(stack: Stack, recipe: Recipe, one: Measured) -> Blend:
    """Choose the method for one target and work out its coefficients, before any scale."""
    strengths = torch.tensor(
        [stack.entries[index].strength_on(one.target) for index in one.entries], dtype=torch.float64
    )
    is_preserved = torch.tensor([stack.entries[index].preserve for index in one.entries])
    coefficients = torch.where(is_preserved, strengths, 0.0)
    # A delta of zeros, or a strength of zero on this branch, takes no part: it must not thin out the others.
    active = ~is_preserved & (strengths != 0) & (one.gram.diagonal() > 0)
    taking_part = torch.nonzero(active).flatten()
    if len(taking_part) == 0:
        return Blend(coefficients, is_preserved, "weighted_sum", "nothing to blend here")
    gram, weights = one.gram[taking_part][:, taking_part], strengths[taking_part]
    method, reason = _choose(recipe, gram, weights)
    module = METHODS[method]
    merged = module.coefficients(gram, weights)
    if module.DEGREE == 0 and recipe.strength_scale == "absolute":
        merged = merged * mean_strength(weights)
    coefficients[taking_part] = merged
    return Blend(coefficients, is_preserved, method, reason)


def _choose(recipe: Recipe, gram: Tensor, strengths: Tensor) -> tuple[str, str]:
    count = len(strengths)
    if count == 1:
        return "weighted_sum", "one LoRA alone"
    turned = torch.sign(strengths)
    between = cosines(gram) * turned[:, None] * turned
    mean = float((between.sum() - between.diagonal().sum()) / (count * (count - 1)))
    method = recipe.method
    if method == AUTO:
        method = "slerp" if count == 2 else "karcher"
    reason = f"{count} LoRAs, mean cosine {mean:+.2f}"
    cancels = getattr(METHODS[method], "cancels", None)
    if cancels is not None and cancels(gram, strengths):
        return method, f"{reason}; they all but cancel, so their average"
    return method, reason if recipe.method == AUTO else f"{reason}; as asked"
