"""LoRA AutoTuner: every way of merging a stack is tried, and the best one applied."""

from collections.abc import Mapping
from typing import Any

from .auto_tuning import auto_tune
from .merge_widgets import sockets, widgets
from .tuner_settings import asked_of, refused
from .types import CATEGORY, EVALUATOR, LORA_DATA, TUNER_DATA


class LoRAAutoTuner:
    """Sweeps over the ways of merging a stack for the connected model."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "Tries hundreds of ways of merging a stack by their effect on every LoRA, merges the most promising ones,"
        " measures them, and applies the best, or the rank that `selection` says. `tuner_data` replays any of them."
    )
    SEARCH_ALIASES = ("autotuner", "lora sweep", "tune merge")
    FUNCTION = "auto_tune"
    RETURN_TYPES = ("MODEL", "CLIP", "STRING", "STRING", TUNER_DATA, LORA_DATA)
    RETURN_NAMES = ("model", "clip", "report", "analysis_report", "tuner_data", "lora_data")
    OUTPUT_TOOLTIPS = (
        "The model with the selected candidate.",
        "The CLIP with the selected candidate.",
        "The candidates with their scores, the best first.",
        "What the selected candidate merged, how, and what is left of each LoRA.",
        "The result, for LoRA Merge Selector, Save Tuner Data and the optimizers; empty with one LoRA.",
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
                    "top_n",
                    "normalize_keys",
                    "scoring_svd",
                    "scoring_device",
                    "architecture_preset",
                    "auto_strength_floor",
                ),
                "evaluator": (
                    EVALUATOR,
                    {"tooltip": "Code of yours that judges the merged candidates, too."},
                ),
                **widgets(
                    "community_cache",
                    "cache_patches",
                    "diff_cache_mode",
                    "diff_cache_ram_pct",
                    "vram_budget",
                    "scoring_speed",
                    "scoring_formula",
                    "output_mode",
                    "decision_smoothing",
                    "smooth_slerp_gate",
                    "memory_mode",
                    "selection",
                ),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(  # noqa: N802
        cls,
        scoring_svd: str | None = None,
        architecture_preset: str | None = None,
        community_cache: str | None = None,
        scoring_formula: str | None = None,
    ) -> str | bool:
        """Words of earlier versions and of other packs are known, too."""
        return refused(
            {
                "scoring_svd": scoring_svd,
                "architecture_preset": architecture_preset,
                "community_cache": community_cache,
                "scoring_formula": scoring_formula,
            }
        )

    def auto_tune(
        self,
        model: Any,
        lora_stack: object,
        output_strength: float = 1.0,
        clip: Any | None = None,
        clip_strength_multiplier: float = 1.0,
        evaluator: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> tuple[Any, Any, str, str, dict[str, Any] | None, dict[str, Any] | None]:
        """Sweep, and apply the selected candidate; see `auto_tuning.auto_tune`."""
        asked = asked_of({**settings, "evaluator": evaluator})
        done = auto_tune(model, clip, lora_stack, asked, output_strength, clip_strength_multiplier)
        return done.model, done.clip, done.report, done.analysis_report, done.tuner_data, done.lora_data
