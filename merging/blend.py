"""The blend on one target: which method, why, and its coefficients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..analysis.similarity import Measured, cosines, strengths_on
from ..lora.stack import Stack
from .methods import METHODS
from .recipe import AUTO, Recipe


def mean_strength(strengths: Tensor) -> float:
    """`S(w) = Σw² / Σ|w|`: 1 for strengths of ±1, `|w|` for one LoRA, and twice for twice the strengths."""
    total = float(strengths.abs().sum())
    return float(strengths.square().sum()) / total if total > 0 else 0.0


@dataclass(frozen=True)
class Blend:
    """The coefficients on one target before any scale: preserved LoRAs at strength, the others merged.

    With `has_cancelled`, the others all but cancel each other, and the method took their average.
    """

    coefficients: Tensor
    is_preserved: Tensor
    method: str
    reason: str
    has_cancelled: bool = False


def blend_group(stack: Stack, recipe: Recipe, one: Measured) -> Blend:
    """Choose the method for one target and work out its coefficients, before any scale."""
    strengths = strengths_on(stack, one)
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
    cancels = getattr(module, "cancels", None)
    has_cancelled = len(weights) > 1 and cancels is not None and cancels(gram, weights)
    merged = module.coefficients(gram, weights)
    if module.DEGREE == 0 and recipe.strength_scale == "absolute":
        merged = merged * mean_strength(weights)
    coefficients[taking_part] = merged
    if has_cancelled:
        reason += "; they all but cancel, so their average"
    return Blend(coefficients, is_preserved, method, reason, has_cancelled)


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
    return method, reason if recipe.method == AUTO else f"{reason}; as asked"
