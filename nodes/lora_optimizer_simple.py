"""LoRA Optimizer: a stack in, a model out, with defaults that need no tuning, or tuned where that is asked."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..autotuner.tuner_data import recipe_of_candidate
from ..merging.recipe import Recipe
from ..merging.settings import recipe_of
from .auto_tuning import auto_tune
from .merge_widgets import hold_structural, sockets, widgets
from .optimizing import optimize
from .settings import is_lazy, is_on_gpu
from .tuned import followed
from .tuner_settings import asked_of, holding
from .types import CATEGORY, LORA_DATA, OPTIMIZER_SETTINGS, TUNER_DATA


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
        "The tuning result, where LoRA AutoTuner Settings are connected; else empty.",
        "The merge, for Save Merged LoRA.",
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": {
                **sockets("model", "lora_stack"),
            },
            "optional": {
                **widgets("output_strength"),
                **sockets("clip"),
                **widgets("clip_strength_multiplier"),
                "tuner_data": (
                    TUNER_DATA,
                    {"tooltip": "A tuning result; its first is followed where no settings are connected."},
                ),
                "settings": (
                    OPTIMIZER_SETTINGS,
                    {"tooltip": "From LoRA Optimizer Settings, or, to tune, from LoRA AutoTuner Settings."},
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
    ) -> tuple[Any, Any, str, dict[str, Any] | None, dict[str, Any] | None]:
        """Merge and apply, or tune; see `optimizing.optimize` and `auto_tuning.auto_tune`."""
        strengths = output_strength, clip_strength_multiplier
        holds = bool(hold_structural)
        if isinstance(settings, Mapping) and settings.get("mode") == "autotuner":
            tuned = auto_tune(model, clip, lora_stack, holding(asked_of(settings), holds), *strengths)
            return tuned.model, tuned.clip, tuned.both, tuned.tuner_data, tuned.lora_data
        recipe, asked = Recipe() if settings is None else recipe_of(settings), None
        if settings is None and followed(tuner_data) is not None:
            recipe, asked = recipe_of_candidate(tuner_data)
            asked = replace(asked, hold_structural=holds)
        done = optimize(
            model,
            clip,
            lora_stack,
            replace(recipe, hold_structural=holds),
            *strengths,
            asked=asked,
            on_gpu=is_on_gpu(settings or {}),
            is_lazy=is_lazy(settings or {}),
        )
        return done.model, done.clip, done.report, None, done.lora_data
