"""TUNER_DATA: what a tuning found, and the recipe of one of its candidates (`spec/nodes.md` §2.3)."""

import json
from collections.abc import Mapping
from typing import Any

from ..core.errors import RecipeError
from ..merging.recipe import Recipe
from ..merging.settings import recipe_of

# What stands at the top level and belongs to every candidate.
_SHARED = ("auto_strength_floor", "architecture_preset", "decision_smoothing")


def candidate(tuner_data: object, rank: int = 1) -> dict[str, Any] | None:
    """The configuration of a rank, with what all candidates share; None if nothing was tuned.

    Raises:
        RecipeError: there is no such rank, or it holds no configuration.
    """
    if not isinstance(tuner_data, Mapping) or not tuner_data.get("top_n"):
        return None
    ranked = tuner_data["top_n"]
    if not isinstance(ranked, list) or not 1 <= rank <= len(ranked):
        raise RecipeError(f"The tuning result has no rank {rank}; choose one of its {len(ranked)}.")
    config = ranked[rank - 1].get("config") if isinstance(ranked[rank - 1], Mapping) else None
    if not isinstance(config, Mapping):
        raise RecipeError(f"Rank {rank} of the tuning result holds no configuration; tune again.")
    shared = {name: tuner_data[name] for name in _SHARED if name in tuner_data}
    return {**shared, **config}


def recipe_of_candidate(config: Mapping[str, Any]) -> Recipe:
    """The recipe of a candidate: its merge mode counts only where it is for all targets.

    Raises:
        RecipeError: it asks for something unknown.
    """
    if config.get("optimization_mode") == "global" and config.get("merge_mode"):
        return recipe_of({**config, "merge_strategy_override": config["merge_mode"]})
    return recipe_of(config)


def told(config: Mapping[str, Any]) -> str:
    """A configuration as JSON, for the node's widgets on screen."""
    return json.dumps(dict(config), default=str)
