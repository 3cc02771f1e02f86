"""LoRA Optimizer (Legacy): every setting on the node itself."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..autotuner.tuner_data import recipe_of_candidate
from ..merging.settings import recipe_of
from .merge_widgets import MERGE_STRATEGY_OVERRIDE, hold_structural, refusal, sockets, widgets, words
from .optimizing import Optimized, optimize
from .settings import is_lazy, is_on_gpu
from .tuned import followed, told
from .types import CATEGORY, LORA_DATA, TUNER_DATA

MANUAL, PASSED_ON, REPLAYED = "manual", "from_autotuner", "from_tuner_data"


class LoRAOptimizer:
    """Merges a stack for the connected model, by settings of its own or by a tuning result."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "LoRA Optimizer with all its settings on the node. The defaults are those of LoRA Optimizer; `tuner_data` is"
        " followed where `settings_source` says so."
    )
    SEARCH_ALIASES = ("lora merge advanced", "lora optimizer advanced")
    FUNCTION = "execute_node"
    RETURN_TYPES = ("MODEL", "CLIP", "STRING", TUNER_DATA, LORA_DATA)
    RETURN_NAMES = ("model", "clip", "analysis_report", "tuner_data", "lora_data")
    OUTPUT_TOOLTIPS = (
        "The model with the merged LoRAs.",
        "The CLIP with the merged LoRAs.",
        "What was merged, how, and what is left of each LoRA.",
        "The connected tuning result, where it was passed on.",
        "The merge, for Save Merged LoRA.",
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": {
                **sockets("model", "lora_stack"),
                **widgets("output_strength"),
            },
            "optional": {
                **sockets("clip"),
                **widgets(
                    "clip_strength_multiplier",
                    "auto_strength",
                    "auto_strength_floor",
                    "free_vram_between_passes",
                    "vram_budget",
                    "optimization_mode",
                    "cache_patches",
                    "patch_compression",
                    "svd_device",
                    "normalize_keys",
                    "sparsification",
                    "sparsification_density",
                    "dare_dampening",
                    "merge_refinement",
                    "strategy_set",
                    "architecture_preset",
                ),
                "merge_strategy_override": MERGE_STRATEGY_OVERRIDE,
                "settings_source": words(
                    (MANUAL, PASSED_ON, REPLAYED),
                    "These widgets; nothing, because the AutoTuner has merged already; or the tuning result's first.",
                ),
                "tuner_data": (TUNER_DATA, {"tooltip": "A tuning result."}),
                **widgets("decision_smoothing", "smooth_slerp_gate"),
                "hold_structural": hold_structural(),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(  # noqa: N802
        cls,
        optimization_mode: str | None = None,
        merge_refinement: str | None = None,
        patch_compression: str | None = None,
        strategy_set: str | None = None,
        architecture_preset: str | None = None,
    ) -> str | bool:
        """Words of earlier versions are known, too."""
        return refusal(
            {
                "optimization_mode": optimization_mode,
                "merge_refinement": merge_refinement,
                "patch_compression": patch_compression,
                "strategy_set": strategy_set,
                "architecture_preset": architecture_preset,
            }
        )

    def execute_node(
        self,
        model: Any,
        lora_stack: object,
        output_strength: float = 1.0,
        clip: Any | None = None,
        clip_strength_multiplier: float = 1.0,
        settings_source: str = MANUAL,
        tuner_data: object | None = None,
        hold_structural: bool = True,
        **settings: Any,
    ) -> Any:
        """Merge and apply; see `optimizing.optimize`."""
        config = followed(tuner_data) if settings_source != MANUAL else None
        if config is not None and settings_source == PASSED_ON:
            report = f"Passed on: the AutoTuner has merged already, by {told(config)}"
            return _shown((model, clip, report, tuner_data, None), config)
        recipe, asked = recipe_of(settings), None
        if config is not None:
            # How the result is kept is this node's own affair; all else is what was tuned.
            tuned, asked = recipe_of_candidate(tuner_data)
            recipe = replace(tuned, compress=recipe.compress)
            asked = replace(asked, hold_structural=bool(hold_structural))
        done = optimize(
            model,
            clip,
            lora_stack,
            replace(recipe, hold_structural=bool(hold_structural)),
            output_strength,
            clip_strength_multiplier,
            asked=asked,
            on_gpu=is_on_gpu(settings),
            is_lazy=is_lazy(settings),
        )
        return _shown(_outputs(done, settings_source, config), config)


def _outputs(done: Optimized, source: str, config: Mapping[str, Any] | None) -> tuple[Any, ...]:
    report = done.report
    if source != MANUAL and config is None:
        report += (
            f"\nNote: `settings_source` is {source}, and no tuning result is connected; the widgets were"
            " followed."
        )
    return done.model, done.clip, report, None, done.lora_data


def _shown(outputs: tuple[Any, ...], config: Mapping[str, Any] | None) -> Any:
    if config is None:
        return outputs
    return {"ui": {"applied_settings": [told(config)]}, "result": outputs}
