"""A candidate's recipe in the words that tuning results are exchanged in (`spec/nodes.md` §2.3).

They have words for five merge modes and none for scales, so a recipe that needs others is told by the nearest one they
have; an exact replay takes the recipe itself (`tuner_data.py`).
"""

from collections.abc import Mapping
from typing import Any

from ..merging.methods import METHODS, is_linear
from ..merging.recipe import AUTO, DENSITY, TRIM, Recipe
from ..merging.settings import recipe_of, refinement_of

AUTOMATIC = "per_prefix_auto"
# The merge modes that other readers know; `weighted_sum` as a strategy that is asked for by name.
MODES = (AUTOMATIC, "weighted_average", "slerp", "consensus", "ties", "weighted_sum")
NEAREST = {"karcher": "slerp", "normalize": "weighted_average", "knots_ties": "ties"}
_SCOPES = {"target": "per_prefix", "global": "global", "additive": "additive"}


def config_of(recipe: Recipe) -> dict[str, Any]:
    """The configuration that says most of a recipe; a method of its own is for all targets."""
    is_named = recipe.method != AUTO
    return {
        "merge_mode": _mode(recipe),
        "sparsification": "disabled" if recipe.sparsifier in ("", TRIM) else recipe.sparsifier,
        "sparsification_density": recipe.density or DENSITY,
        "dare_dampening": recipe.dampening,
        "merge_refinement": refinement_of(recipe),
        "auto_strength": "enabled" if recipe.auto_strength else "disabled",
        "optimization_mode": "global" if is_named else _SCOPES[recipe.scope],
        "strategy_set": recipe.strategy_set,
    }


def _mode(recipe: Recipe) -> str:
    if recipe.method == AUTO:
        return AUTOMATIC
    if recipe.method in MODES:
        return recipe.method
    nearest = "weighted_average" if is_linear(METHODS[recipe.method]) else "ties"
    return NEAREST.get(recipe.method, nearest)


def recipe_of_config(config: Mapping[str, Any]) -> Recipe:
    """The recipe that a configuration asks for; its merge mode counts only where it is for all targets.

    Args:
        config: with what all candidates share: `auto_strength_floor`, `architecture_preset`, `decision_smoothing`.

    Raises:
        RecipeError: it asks for something unknown.
        StackError: a number is none.
    """
    mode = config.get("merge_mode")
    if config.get("optimization_mode") == "global" and mode and mode != AUTOMATIC:
        return recipe_of({**config, "merge_strategy_override": mode, "mode": "advanced"})
    return recipe_of({**config, "mode": "advanced"})
