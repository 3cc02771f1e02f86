"""What the widgets and settings of the optimizer nodes ask for, as a recipe.

Names and words are those of saved workflows, old ones included (`spec/nodes.md` §1.4, §2.5, §7.4).
"""

from collections.abc import Mapping
from typing import Any

from ..core.errors import RecipeError
from ..core.params import unknown
from ..merging.methods import METHODS
from ..merging.recipe import AUTO, NONE, REFINEMENTS, Recipe
from .stack_entries import finite

LAZY = "lazy"
ON, OFF = ("enabled", True), ("disabled", False)
# By setting: our field, and what each word of any age means in it.
_WORDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "optimization_mode": (
        "scope",
        {
            "per_prefix": "target",
            "global": "global",
            "additive": "additive",
            "weighted_sum_only": "additive",
        },
    ),
    "merge_refinement": (
        "enhance",
        {
            "none": NONE,
            "refine": "refine",
            "full": "full",
            "standard": NONE,
            "enhanced": "refine",
            "maximum": "full",
        },
    ),
    "sparsification": (
        "sparsify",
        {
            "disabled": NONE,
            "dare": "dare",
            "della": "della",
            "dare_conflict": "dare_conflict",
            "della_conflict": "della_conflict",
        },
    ),
    "strategy_set": (
        "strategy_set",
        {"full": "full", "no_slerp": "no_slerp", "basic": "basic", "v1.2": "full", "classic": "basic"},
    ),
    "architecture_preset": (
        "architecture",
        {"auto": "auto", "sd_unet": "sd_unet", "dit": "dit", "llm": "llm", "acestep": "dit"},
    ),
    "patch_compression": (
        "compress",
        {
            "smart": "smart",
            "aggressive": "aggressive",
            "disabled": "disabled",
            LAZY: "disabled",  # kept in no form at all; see `is_lazy`
            "non_ties": "smart",
            "all": "aggressive",
            "auto": "smart",
        },
    ),
}
_OLD_NAMES = {
    "merge_quality": "merge_refinement",
    "behavior_profile": "strategy_set",
    "compress_patches": "patch_compression",
}
_NUMBERS = {
    "decision_smoothing": "smoothing",
    "dare_dampening": "dampening",
    "star_eta": "star_eta",
    "tame_layers": "tame",
    "tame_threshold": "tame_threshold",
}


def recipe_of(settings: Mapping[str, Any]) -> Recipe:
    """The recipe that OPTIMIZER_SETTINGS, or an optimizer's widgets, ask for; what is absent keeps its default.

    Raises:
        RecipeError: they ask for something that is unknown; all of it is named.
    """
    if not isinstance(settings, Mapping):
        raise RecipeError(
            f"The settings are a {type(settings).__name__}; connect the `settings` output of a settings node, or"
            " nothing, for the defaults."
        )
    if not _is_one_of(settings.get("mode", "advanced"), ("advanced",)):
        raise RecipeError(
            f"Settings of the mode {settings['mode']!r:.60} ask for tuning, which this version lacks; choose"
            " `advanced`."
        )
    given = {_OLD_NAMES.get(name, name): value for name, value in settings.items()}
    refused: list[str] = []
    fields: dict[str, Any] = {}
    for name, (field, words) in _WORDS.items():
        if name in given:
            word = given[name] if isinstance(given[name], str) else None
            if word in words:
                fields[field] = words[word]
            else:
                refused.append(f"{name} = {given[name]!r:.60}")
    if "auto_strength" in given:
        if _is_one_of(given["auto_strength"], ON + OFF):
            fields["auto_strength"] = _is_one_of(given["auto_strength"], ON)
        else:
            refused.append(f"auto_strength = {given['auto_strength']!r:.60}")
    method = given.get("merge_strategy_override") or AUTO
    if method != AUTO and method not in METHODS:
        refused.append(unknown("merge strategy", f"{method!s:.60}", METHODS).removesuffix("."))
    if refused:
        raise RecipeError(
            f"The settings ask for what this version does not do: {'; '.join(refused)}. Set them back;"
            " nothing was merged."
        )
    fields |= {field: finite(given[name], f"`{name}`") for name, field in _NUMBERS.items() if name in given}
    if fields.get("sparsify", NONE) != NONE and "sparsification_density" in given:
        fields["density"] = finite(given["sparsification_density"], "`sparsification_density`")
    floor = given.get("auto_strength_floor")
    if floor is not None:
        # Negative is the automatic floor of old, which did harm: no floor.
        fields["auto_strength_floor"] = max(finite(floor, "`auto_strength_floor`"), 0.0)
    return Recipe(method=method, **fields)


def known_words(name: str) -> tuple[str, ...]:
    """Every word that a setting ever had."""
    return tuple(_WORDS[name][1])


def is_lazy(settings: Mapping[str, Any]) -> bool:
    """Whether results of full rank are not to be kept, but worked out when they are needed."""
    return _is_one_of(settings.get("patch_compression"), (LAZY,))


def is_on_gpu(settings: Mapping[str, Any]) -> bool:
    """Whether element-wise work is to be done on ComfyUI's device."""
    return not _is_one_of(settings.get("svd_device"), ("cpu",))


def refinement_of(recipe: Recipe) -> str:
    """The `merge_refinement` that stands for a recipe's enhancers, or their names where none does."""
    names = {enhancers: name for name, enhancers in REFINEMENTS.items()}
    return names.get(recipe.enhancers, recipe.enhance)


def _is_one_of(value: object, known: tuple[object, ...]) -> bool:
    """Whether a setting is one of these; what is no plain value, such as a tensor, is none of them."""
    return isinstance(value, str | bool | int | float) and value in known
