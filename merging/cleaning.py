"""Cleaning of single LoRAs, before anything is measured or merged: STAR and TAME (`spec/newer-features.md` §2.2).

Preserved LoRAs are exempt. Both act on every path: on combinations, on element-wise work, and on LoRAs alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..core.errors import RecipeError
from ..enhance import star, tame
from ..lora.factors import Delta, LowRank
from ..lora.stack import Group, Stack
from .recipe import Recipe
from .shared_basis import factors_of

OFF = 100.0


def cleaner(recipe: Recipe) -> Callable[[Delta], Delta] | None:
    """What STAR makes of a delta, or None if the recipe leaves it off."""
    if recipe.star_eta >= OFF:
        return None

    def clean(delta: Delta) -> Delta:
        # Broken values have no spectrum: whoever measures them says which file and module they are of.
        if len(delta.shape) < 2 or not all(
            torch.isfinite(one.float()).all() for one in delta.tensors.values()
        ):
            return delta
        up, down = star.cleaned(*factors_of(delta), eta=recipe.star_eta)
        return LowRank(up, down, 1.0, delta.shape)

    return clean


def tamed(stack: Stack, recipe: Recipe, group: Group, energies: Tensor, strengths: Tensor) -> Tensor:
    """Strengths on one target, those of large LoRAs turned down by TAME.

    Args:
        stack: with the base model.
        recipe: what is asked.
        group: the target.
        energies: `(n,)`, squared norms of the deltas at strength 1.
        strengths: `(n,)`.

    Raises:
        RecipeError: TAME is asked for, and the base weight cannot be read.
    """
    if recipe.tame == 0.0:
        return strengths
    base = stack.model.base(group.target.weight) if stack.model else None
    if base is None:
        raise RecipeError(
            f"TAME (`tame` = {recipe.tame:g}) compares a LoRA with the base weight, and that of {group.target.weight}"
            " cannot be read. Give the base model (`--base`), or set `tame` to 0."
        )
    base_norm = float(torch.linalg.vector_norm(base, dtype=torch.float64))
    loud = (strengths.abs() * energies.clamp(min=0).sqrt()).tolist()
    factors = [
        tame.factor(one, base_norm, layers=recipe.tame, threshold=recipe.tame_threshold) for one in loud
    ]
    return strengths * strengths.new_tensor(factors)
