"""LoRA AutoTuner Settings: how LoRA Optimizer is to tune."""

from collections.abc import Mapping
from typing import Any

from .lora_merge_settings import shared
from .merge_widgets import widgets
from .tuner_settings import OLD_WORDS, refused
from .types import CATEGORY, EVALUATOR, MERGE_SETTINGS, OPTIMIZER_SETTINGS


class LoRAAutoTunerSettings:
    """The settings of a sweep, for LoRA Optimizer."""

    CATEGORY = CATEGORY
    DESCRIPTION = "Connected to LoRA Optimizer, it tries every way of merging and applies the best."
    SEARCH_ALIASES = ("autotuner settings", "tune merge")
    FUNCTION = "build_settings"
    RETURN_TYPES = (OPTIMIZER_SETTINGS,)
    RETURN_NAMES = ("settings",)
    OUTPUT_TOOLTIPS = ("For `settings` of LoRA Optimizer.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": widgets(
                "top_n",
                "scoring_svd",
                "scoring_device",
                "scoring_speed",
                "scoring_formula",
                "diff_cache_mode",
                "diff_cache_ram_pct",
            ),
            # Not required: scripts of before them leave them out.
            "optional": {
                **widgets("community_cache", "memory_mode", "selection"),
                "merge_settings": (MERGE_SETTINGS, {"tooltip": "From LoRA Merge Settings."}),
                "evaluator": (
                    EVALUATOR,
                    {"tooltip": "Code of yours that judges the merged candidates, too."},
                ),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(  # noqa: N802
        cls,
        scoring_svd: str | None = None,
        community_cache: str | None = None,
        scoring_formula: str | None = None,
    ) -> str | bool:
        """Words of earlier versions and of other packs are known, too."""
        return refused(
            {
                "scoring_svd": scoring_svd,
                "community_cache": community_cache,
                "scoring_formula": scoring_formula,
            }
        )

    def build_settings(
        self,
        merge_settings: Mapping[str, Any] | None = None,
        evaluator: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> tuple[dict[str, Any]]:
        """The widgets' values in today's words, and what both kinds of settings share.

        Raises:
            RecipeError: `merge_settings` are none.
        """
        kept = {**shared(merge_settings), **settings}
        for name in ("scoring_svd", "community_cache"):
            if isinstance(kept.get(name), str):
                kept[name] = OLD_WORDS[name].get(kept[name], kept[name])
        return ({**kept, "output_mode": "merge", "evaluator": evaluator, "mode": "autotuner"},)
