"""LoRA Optimizer (Legacy): every setting on the node itself."""

from collections.abc import Mapping
from typing import Any

from .optimizing import Optimized, optimize
from .settings import recipe_of
from .tuned import candidate, recipe_of_candidate, told
from .types import CATEGORY, LORA_DATA, LORA_STACK, TUNER_DATA

MANUAL, PASSED_ON, REPLAYED = "manual", "from_autotuner", "from_tuner_data"


def _words(words: tuple[str, ...], tooltip: str, default: str = "") -> tuple[list[str], dict[str, Any]]:
    return list(words), {"default": default or words[0], "tooltip": tooltip}


def _number(default: float, low: float, high: float, tooltip: str) -> tuple[str, dict[str, Any]]:
    return "FLOAT", {"default": default, "min": low, "max": high, "step": 0.05, "tooltip": tooltip}


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
                "model": ("MODEL", {"tooltip": "The model the LoRAs were trained for. It is not changed."}),
                "lora_stack": (LORA_STACK, {"tooltip": "A stack of LoRAs, from this pack or any other."}),
                "output_strength": _number(
                    1.0, -1.0, 10.0, "Strength of the merged result. Negative: what the merge suggests."
                ),
            },
            "optional": {
                "clip": ("CLIP", {"tooltip": "The text encoders; without them only the model is changed."}),
                "clip_strength_multiplier": _number(
                    1.0, 0.0, 10.0, "A further factor on the text encoders' part, for every LoRA alike."
                ),
                "auto_strength": _words(
                    ("enabled", "disabled"),
                    "Turn a blend down that would be louder than its strongest LoRA.",
                ),
                "auto_strength_floor": _number(
                    -1.0, -1.0, 1.0, "The least factor auto-strength may apply; negative or 0: no limit."
                ),
                "free_vram_between_passes": _words(
                    ("disabled", "enabled"),
                    "Kept for saved workflows: the merge holds no memory between passes.",
                ),
                "vram_budget": _number(
                    0.0, 0.0, 1.0, "Share of the free GPU memory in which merged patches may stay."
                ),
                "optimization_mode": _words(
                    ("per_prefix", "global", "additive"),
                    "Choose a method for every weight, one for all, or add everything up.",
                ),
                "cache_patches": _words(
                    ("enabled", "disabled"), "Kept for saved workflows: ComfyUI's own cache holds the result."
                ),
                "patch_compression": _words(
                    ("smart", "aggressive", "disabled", "lazy"),
                    "For results that have no low rank of their own: factors where they cost next to nothing (smart),"
                    " always, with the error told (aggressive), never (disabled), or kept as their recipe and worked"
                    " out when ComfyUI loads the weight, which saves memory (lazy).",
                ),
                "svd_device": _words(("gpu", "cpu"), "Where element-wise work is done."),
                "normalize_keys": _words(
                    ("enabled", "disabled"),
                    "Kept for saved workflows: names of every trainer are always read.",
                ),
                "sparsification": _words(
                    ("disabled", "dare", "della", "dare_conflict", "della_conflict"),
                    "Set entries of every LoRA to zero before the merge; those on conflict only where LoRAs disagree.",
                ),
                "sparsification_density": _number(0.7, 0.01, 1.0, "The share of entries that stays."),
                "dare_dampening": _number(0.0, 0.0, 1.0, "How much less DARE scales up what it keeps."),
                "merge_refinement": _words(
                    ("none", "refine", "full"),
                    "refine: orthogonalise, protect what one LoRA alone pushes, elect whole rows. full: also merge in a"
                    " shared basis (KnOTS).",
                ),
                "strategy_set": _words(
                    ("full", "no_slerp", "basic"), "Which methods may be chosen without being asked for."
                ),
                "architecture_preset": _words(
                    ("auto", "sd_unet", "dit", "llm"), "What TIES' density is chosen for."
                ),
                "merge_strategy_override": (
                    "STRING",
                    {"default": "", "forceInput": True, "tooltip": "A merge method's name; empty: chosen."},
                ),
                "settings_source": _words(
                    (MANUAL, PASSED_ON, REPLAYED),
                    "These widgets; nothing, because the AutoTuner has merged already; or the tuning result's first.",
                ),
                "tuner_data": (TUNER_DATA, {"tooltip": "A tuning result."}),
                "decision_smoothing": _number(
                    0.25, 0.0, 1.0, "How far the choice for a weight goes by its block: 0 not at all."
                ),
                "smooth_slerp_gate": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "Kept for saved workflows: every choice is smoothed alike.",
                    },
                ),
            },
        }

    def execute_node(
        self,
        model: Any,
        lora_stack: object,
        output_strength: float = 1.0,
        clip: Any | None = None,
        clip_strength_multiplier: float = 1.0,
        settings_source: str = MANUAL,
        tuner_data: object | None = None,
        svd_device: str = "gpu",
        patch_compression: str = "smart",
        **settings: Any,
    ) -> Any:
        """Merge and apply; see `optimizing.optimize`."""
        config = candidate(tuner_data) if settings_source != MANUAL else None
        if config is not None and settings_source == PASSED_ON:
            report = f"Passed on: the AutoTuner has merged already, by {told(config)}"
            return _shown((model, clip, report, tuner_data, None), config)
        asked = {
            **settings,
            "patch_compression": "disabled" if patch_compression == "lazy" else patch_compression,
        }
        recipe = recipe_of(asked) if config is None else recipe_of_candidate(asked | config)
        done = optimize(
            model,
            clip,
            lora_stack,
            recipe,
            output_strength,
            clip_strength_multiplier,
            on_gpu=svd_device == "gpu",
            is_lazy=patch_compression == "lazy",
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
