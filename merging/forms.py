"""The form of a result that is of full rank: factors where they tell all of it, else every value.

A result of element-wise work has no low rank of its own. Factors of it are an approximation, whose error is stated;
they are never taken unasked where it would be more than `SMART` (`design.md` §3, `spec/newer-features.md` §2.9).
"""

from ..core.linalg import may_be_thin
from ..lora.factors import Delta
from ..lora.full import Dense
from .recipe import Recipe

SMART = 0.01  # the relative error that `smart` may cost
LEAST_RANK = 64


def form_of(blend: Delta, recipe: Recipe, rank: int, kept: int) -> tuple[int, float]:
    """The rank and the tolerance with which a blend is kept; both 0 to keep it as it is.

    Args:
        blend: float32.
        recipe: a rank or a tolerance that it names comes first.
        rank: of the LoRAs that went into it, added up.
        kept: of the preserved ones on top, which a rank that nobody named must leave as they are.
    """
    if recipe.rank or recipe.tolerance or recipe.compress == "disabled" or not isinstance(blend, Dense):
        return recipe.rank, recipe.tolerance
    budget = max(LEAST_RANK, rank)
    if recipe.compress == "aggressive":
        return budget + kept, 0.0
    return 0, SMART if may_be_thin(blend.matrix, budget, SMART) else 0.0
