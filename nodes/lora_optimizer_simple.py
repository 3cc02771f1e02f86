"""LoRA Optimizer: a stack in, a model out, with the defaults that need no tuning."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..merging.recipe import Recipe
from .merge_widgets import hold_structural, widgets
from .optimizing import optimize
from .settings import is_lazy, is_on_gpu, recipe_of
from .tuned import candidate, recipe_of_candidate
from .types import CATEGORY, LORA_DATA, LORA_STACK, OPTIMIZER_SETTINGS, TUNER_DATA


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
                **widgets("output_strength"),
                "clip": ("CLIP", {"tooltip": "The text encoders; without them only the model is changed."}),
                **widgets("clip_strength_multiplier"),
                "tuner_data": (
                    TUNER_DATA,
                    {"tooltip": "A tuning result; its first is followed where no settings are connected."},
                ),
                "settings": (
                    OPTIMIZER_SETTINGS,
                    {"tooltip": "From LoRA Optimizer Settings: how to merge. Without them the defaults."},
                ),
                "hold_structural": hold_structural(),
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
        config = candidate(tuner_data) if settings is None else None
        if config is not None:
            recipe = recipe_of_candidate(config)
        else:
            recipe = Recipe() if settings is None else recipe_of(settings)
        recipe = replace(recipe, hold_structural=bool(hold_structural))
        done = optimize(
            model,
            clip,
            lora_stack,
            recipe,
            output_strength,
            clip_strength_multiplier,
            on_gpu=is_on_gpu(settings or {}),
            is_lazy=is_lazy(settings or {}),
        )
        return done.model, done.clip, done.report, None, done.lora_data
