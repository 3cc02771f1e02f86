"""LoRA Optimizer Settings: how LoRA Optimizer is to merge."""

from collections.abc import Mapping
from typing import Any

from ..core.errors import RecipeError
from .lora_merge_settings import DEFAULTS
from .merge_widgets import MERGE_STRATEGY_OVERRIDE, refusal, widgets
from .types import CATEGORY, MERGE_SETTINGS, OPTIMIZER_SETTINGS


class LoRAOptimizerSettings:
    """The settings of a merge, for LoRA Optimizer."""

    CATEGORY = CATEGORY
    DESCRIPTION = "How LoRA Optimizer merges, where its defaults are not what you want."
    SEARCH_ALIASES = ("optimizer settings", "merge method")
    FUNCTION = "build_settings"
    RETURN_TYPES = (OPTIMIZER_SETTINGS,)
    RETURN_NAMES = ("settings",)
    OUTPUT_TOOLTIPS = ("For `settings` of LoRA Optimizer.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": widgets(
                "auto_strength",
                "optimization_mode",
                "merge_refinement",
                "sparsification",
                "sparsification_density",
                "dare_dampening",
                "patch_compression",
                "svd_device",
                "free_vram_between_passes",
                "strategy_set",
            ),
            "optional": {
                "merge_settings": (MERGE_SETTINGS, {"tooltip": "From LoRA Merge Settings."}),
                "merge_strategy_override": MERGE_STRATEGY_OVERRIDE,
            },
        }

    @classmethod
    def VALIDATE_INPUTS(  # noqa: N802
        cls,
        optimization_mode: str | None = None,
        merge_refinement: str | None = None,
        patch_compression: str | None = None,
        strategy_set: str | None = None,
    ) -> str | bool:
        """Words of earlier versions are known, too."""
        return refusal(
            {
                "optimization_mode": optimization_mode,
                "merge_refinement": merge_refinement,
                "patch_compression": patch_compression,
                "strategy_set": strategy_set,
            }
        )

    def build_settings(
        self,
        merge_settings: Mapping[str, Any] | None = None,
        merge_strategy_override: str | None = "",
        **settings: Any,
    ) -> tuple[dict[str, Any]]:
        """The widgets' values, and what both kinds of settings share.

        Raises:
            RecipeError: `merge_settings` are none.
        """
        if merge_settings is not None and not isinstance(merge_settings, Mapping):
            raise RecipeError(
                f"`merge_settings` is a {type(merge_settings).__name__}; connect LoRA Merge Settings, or nothing."
            )
        override = {"merge_strategy_override": merge_strategy_override or ""}
        return ({**DEFAULTS, **(merge_settings or {}), **settings, **override, "mode": "advanced"},)
