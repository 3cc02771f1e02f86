"""A tuning result as JSON values: what one node hands to the next, and what a `.tuner` file holds.

The keys of `spec/nodes.md` §2.3 are there for every reader. Beside them stands what an exact replay needs: the recipe
of each candidate, the recipe that was tuned, and the device that element-wise work was done on.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import exp, isfinite
from typing import Any

from ..core.errors import RecipeError
from ..merging.recipe import Recipe
from .config import config_of, recipe_of_config
from .looking import Seen
from .search import Candidate, Tuned
from .summary import summary

VERSION = 1
# What stands at the top and belongs to every candidate.
SHARED = ("auto_strength_floor", "architecture_preset", "decision_smoothing")
NEAREST = "the nearest that a reader without `recipe` can do"


def lora_hash(sources: Sequence[tuple[str, float]]) -> str:
    """Which LoRAs were tuned, at which strengths: 16 hexadecimal digits, as every reader of such results has them.

    Args:
        sources: names and model strengths, in the order of the stack.
    """
    active = [[name, float(strength)] for name, strength in sources if strength != 0]
    return hashlib.sha256(json.dumps(active).encode()).hexdigest()[:16]


def tuner_data(
    found: Tuned,
    asked: Recipe,
    *,
    sources: Sequence[tuple[str, float]] = (),
    legacy: str = "",
    told: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A sweep as TUNER_DATA; candidates that were not merged are not in it.

    Args:
        found: the sweep.
        asked: the recipe that was tuned.
        sources: what the stack's entries are called, and their strengths; empty for their labels.
        legacy: the legacy formula that ranked, `v1` or `v2`; empty for the score of the sweep.
        told: settings in the words they were given in, instead of the recipe's: `normalize_keys`, `SHARED`, and more.
    """
    labels = [(entry.file.label, entry.strength) for entry in found.stack.entries]
    named = list(sources) or labels
    first = next((one.seen for one in found.merged if one.seen is not None), None)
    stack = summary(found.stack, found.measured, asked.smoothing) if first is None else first.summary
    settings = {
        "normalize_keys": "enabled",
        "architecture_preset": asked.architecture,
        "auto_strength_floor": asked.auto_strength_floor or -1.0,
        "decision_smoothing": asked.smoothing,
    }
    return {
        "version": VERSION,
        "lora_hash": lora_hash(named),
        "source_loras": [{"name": name, "strength": strength} for name, strength in named],
        **settings,
        **(told or {}),
        "analysis_summary": stack.to_json(),
        "top_n": [
            _candidate(one, rank, found.score, legacy, [label for label, _ in labels])
            for rank, one in enumerate(found.merged, 1)
        ],
        "score_name": f"{legacy} (legacy)" if legacy else found.score,
        "recipe": asked.to_json(),
        "tried": found.tried,
        "seconds": dict(found.seconds),
    }


def _candidate(one: Candidate, rank: int, score: str, legacy: str, labels: Sequence[str]) -> dict[str, Any]:
    recipe, verdict, seen = one.recipe, one.verdict, one.seen
    own = exp(min(one.measured if one.measured is not None else one.predicted, 0.0))
    internal = seen.legacy[legacy] if legacy and seen else own
    config = config_of(recipe)
    is_exact = recipe.method in ("auto", config["merge_mode"])
    return {
        "rank": rank,
        "score_heuristic": exp(min(one.predicted, 0.0)),
        "score_measured": internal,
        "score_external": None if verdict is None else verdict.external,
        "score_final": internal if verdict is None else verdict.final,
        "config": config,
        "metrics": _metrics(seen),
        "external_details": None if verdict is None else verdict.details,
        **({} if is_exact else {"config_note": NEAREST}),
        "name": one.name,
        "same": list(one.same),
        "recipe": recipe.to_json(),
        "global_scale": recipe.scale_to,
        "score_name": f"{legacy} (legacy)" if legacy else score,
        "predicted": one.predicted,
        "predicted_error": one.spread,
        "measured": one.measured,
        "legacy_scores": dict(seen.legacy) if seen else {},
        "retention": [
            {"name": label, "left": share}
            for label, share in zip(labels, seen.retention if seen else (), strict=False)
        ],
        "seconds": one.seconds,
    }


def _metrics(seen: Seen | None) -> dict[str, float]:
    if seen is None or seen.metrics is None:
        return {}
    found = seen.metrics
    return {
        "norm_preservation": found.norm,
        "effective_rank_mean": found.effective_rank or 0.0,
        "sparsity_mean": found.sparsity or 0.0,
        "norm_cv": found.norm_cv,
        "energy_ratio": found.energy_ratio,
        "energy_preservation": found.energy_preservation,
        "importance_cv": found.norm_cv,
    }


def candidates_of(data: object) -> list[Any]:
    """The ranked candidates of a tuning result, the best first; empty where it is none."""
    ranked = data.get("top_n") if isinstance(data, Mapping) else None
    return list(ranked) if isinstance(ranked, list | tuple) else []


def candidate_of(data: object, rank: int) -> Mapping[str, Any]:
    """The candidate of a rank.

    Raises:
        RecipeError: there is none.
    """
    ranked = candidates_of(data)
    if not ranked:
        raise RecipeError(
            "This is no tuning result, or an empty one; connect `tuner_data` of LoRA AutoTuner."
        )
    if not 1 <= rank <= len(ranked):
        raise RecipeError(f"The tuning result has no rank {rank}; choose one of its {len(ranked)}.")
    found = ranked[rank - 1]
    if not isinstance(found, Mapping) or not isinstance(found.get("config"), Mapping):
        raise RecipeError(f"Rank {rank} of the tuning result holds no configuration; tune again.")
    return found


def config_of_rank(data: object, rank: int = 1) -> dict[str, Any]:
    """The configuration of a rank, with what all candidates share.

    Raises:
        RecipeError: there is no such rank, or it holds no configuration.
    """
    found = candidate_of(data, rank)
    assert isinstance(data, Mapping)
    return {name: data[name] for name in SHARED if name in data} | dict(found["config"])


def recipe_of_candidate(data: object, rank: int = 1) -> tuple[Recipe, Recipe]:
    """The recipe of a candidate, and the one that was tuned: what an exact replay needs.

    A result that holds no recipes, or none that can be read, is followed by its configuration.

    Raises:
        RecipeError: there is no such rank, or it asks for something unknown.
        StackError: a number is none.
    """
    found = candidate_of(data, rank)
    assert isinstance(data, Mapping)
    recipe = _stored(found.get("recipe"))
    if recipe is not None:
        return recipe, _stored(data.get("recipe")) or recipe
    recipe = recipe_of_config(config_of_rank(data, rank))
    return recipe, recipe


def is_exact(data: object, rank: int = 1) -> bool:
    """Whether a candidate holds the recipe that it was merged by."""
    return _stored(candidate_of(data, rank).get("recipe")) is not None


def score_of(found: Mapping[str, Any]) -> float | None:
    """What a candidate is ranked by, whoever wrote it; None if nothing of that can be read."""
    for name in ("score_final", "score_measured", "score_heuristic"):
        value = found.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            return float(value)
    return None


def _stored(given: object) -> Recipe | None:
    if not isinstance(given, Mapping):
        return None
    try:
        return Recipe.from_json(given)
    except (RecipeError, TypeError):
        return None
