"""LoRA Optimizer: a stack in, a model out, with the defaults that need no tuning."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core.errors import RecipeError
from ..core.params import unknown
from ..merging.methods import METHODS
from ..merging.recipe import Recipe
from .optimizing import optimize
from .stack_entries import finite
from .types import CATEGORY, LORA_DATA, LORA_STACK, OPTIMIZER_SETTINGS, TUNER_DATA

# Settings that name what this version does, by the value that asks for nothing else.
_NOTHING_ELSE: Mapping[str, tuple[object, ...]] = {
    "optimization_mode": ("per_prefix", "global", "additive", "weighted_sum_only"),
    "merge_refinement": ("none", "standard"),
    "sparsification": ("disabled",),
    "strategy_set": ("full", "v1.2"),
    "tame_layers": (0, 0.0),
    "star_eta": (100, 100.0),
}


ON, OFF = ("enabled", True), ("disabled", False)


class LoRAOptimizerSimple:
    """Merges a stack for the connected model and applies it."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "Analyses a stack of LoRAs, merges it weight by weight, and applies the result to model and CLIP."
        " The report says how much of each LoRA is left. Connect `lora_data` to Save Merged LoRA to keep it."
    )
    SEARCH_ALIASES = ("lora merge", "lora optimizer", "merge loras")
    FUNCTION = "execute_simple"
    RETURN_TYPES = ("MODEL", "CLIP", "STRING", TUNER_DATA, LORA_DATA)
    RETURN_NAMES = ("model", "clip", "analysis_report", "tuner_data", "lora_data")
    OUTPUT_TOOLTIPS = (
        "The model with the merged LoRAs.",
        "The CLIP with the merged LoRAs.",
        "What was merged, how, and what is left of each LoRA.",
        "Empty: this node does not tune.",
        "The merge, for Save Merged LoRA.",
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "The model the LoRAs were trained for. It is not changed."}),
                "lora_stack": (LORA_STACK, {"tooltip": "A stack of LoRAs, from this pack or any other."}),
            },
            "optional": {
                "output_strength": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": -1.0,
                        "max": 10.0,
                        "step": 0.05,
                        "tooltip": "Strength of the merged result. Negative: what the merge suggests.",
                    },
                ),
                "clip": ("CLIP", {"tooltip": "The text encoders; without them only the model is changed."}),
                "clip_strength_multiplier": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 10.0,
                        "step": 0.05,
                        "tooltip": "A further factor on the text encoders' part, for every LoRA alike.",
                    },
                ),
                "tuner_data": (
                    TUNER_DATA,
                    {"tooltip": "Kept for workflows that have it; this version tunes nothing."},
                ),
                "settings": (
                    OPTIMIZER_SETTINGS,
                    {"tooltip": "Kept for workflows that have them; followed where this version can."},
                ),
                "hold_structural": (
                    "BOOLEAN",
                    {
                        "default": True,
                        "label_on": "held out",
                        "label_off": "blended",
                        "tooltip": "LCM, Lightning, Turbo, Hyper, DPO and edit LoRAs are kept out of the blend and"
                        " added on top, exactly; the report names them.",
                    },
                ),
            },
        }

    def execute_simple(
        self,
        model: Any,
        lora_stack: object,
        output_strength: float = 1.0,
        clip: Any | None = None,
        clip_strength_multiplier: float = 1.0,
        tuner_data: object | None = None,
        settings: Mapping[str, Any] | None = None,
        hold_structural: bool = True,
    ) -> tuple[Any, Any, str, None, dict[str, Any] | None]:
        """Merge and apply; see `optimizing.optimize`."""
        if settings is None and tuner_data:
            raise RecipeError(
                "`tuner_data` is connected, and this version cannot replay a tuning result. Disconnect it"
                " to merge with the defaults."
            )
        recipe = Recipe() if settings is None else recipe_of(settings)
        recipe = replace(recipe, hold_structural=bool(hold_structural))
        done = optimize(model, clip, lora_stack, recipe, output_strength, clip_strength_multiplier)
        return done.model, done.clip, done.report, None, done.lora_data


def recipe_of(settings: Mapping[str, Any]) -> Recipe:
    """The recipe that OPTIMIZER_SETTINGS ask for (`spec/nodes.md` §2.5).

    Raises:
        RecipeError: they ask for something this version does not do; all of it is named.
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
    refused = [
        f"{name} = {settings[name]!r:.60}"
        for name, fine in (*_NOTHING_ELSE.items(), ("auto_strength", ON + OFF))
        if name in settings and not _is_one_of(settings[name], fine)
    ]
    method = settings.get("merge_strategy_override") or "auto"
    if _is_one_of(settings.get("optimization_mode"), ("additive", "weighted_sum_only")):
        method = "weighted_sum"
    if method != "auto" and method not in METHODS:
        refused.append(unknown("merge strategy", f"{method!s:.60}", METHODS).removesuffix("."))
    if refused:
        raise RecipeError(
            f"The settings ask for what this version does not do: {'; '.join(refused)}. Set them back;"
            " nothing was merged."
        )
    floor = settings.get("auto_strength_floor")
    return Recipe(
        method=method,
        auto_strength=_is_one_of(settings.get("auto_strength", "enabled"), ON),
        auto_strength_floor=0.0 if floor is None else max(finite(floor, "`auto_strength_floor`"), 0.0),
    )


def _is_one_of(value: object, known: tuple[object, ...]) -> bool:
    """Whether a setting is one of these; what is no plain value, such as a tensor, is none of them."""
    return isinstance(value, str | bool | int | float) and value in known
