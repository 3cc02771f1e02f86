"""LoRA Merge Settings: what the settings nodes have in common."""

from collections.abc import Mapping
from typing import Any

from ..core.errors import RecipeError
from ..core.numbers import finite
from .merge_widgets import refusal, widgets
from .types import CATEGORY, MERGE_SETTINGS

DEFAULTS = {
    name: one[1]["default"]
    for name, one in widgets(
        "normalize_keys",
        "architecture_preset",
        "auto_strength_floor",
        "decision_smoothing",
        "smooth_slerp_gate",
        "vram_budget",
        "cache_patches",
        "star_eta",
        "tame_layers",
        "tame_threshold",
    ).items()
}
NO_LIMIT = -1.0


class LoRAMergeSettings:
    """The settings that seldom change, for both kinds of settings."""

    CATEGORY = CATEGORY
    DESCRIPTION = "Settings that seldom change: smoothing, auto-strength's floor, and cleaning of each LoRA."
    SEARCH_ALIASES = ("merge settings", "lora cleaning")
    FUNCTION = "build_settings"
    RETURN_TYPES = (MERGE_SETTINGS,)
    RETURN_NAMES = ("merge_settings",)
    OUTPUT_TOOLTIPS = ("For LoRA Optimizer Settings, and for LoRA AutoTuner Settings.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": widgets(
                "normalize_keys",
                "architecture_preset",
                "auto_strength_floor",
                "decision_smoothing",
                "smooth_slerp_gate",
                "vram_budget",
                "cache_patches",
            ),
            # Not required: scripts of before them leave them out.
            "optional": widgets("auto_strength_floor_mode", "star_eta", "tame_layers", "tame_threshold"),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, architecture_preset: str | None = None) -> str | bool:  # noqa: N802
        """Words of earlier versions are known, too."""
        return refusal({"architecture_preset": architecture_preset})

    def build_settings(
        self,
        auto_strength_floor: float = NO_LIMIT,
        auto_strength_floor_mode: str | None = None,
        **settings: Any,
    ) -> tuple[dict[str, Any]]:
        """The widgets' values; the floor's mode is resolved: absent, the floor itself says what holds.

        Raises:
            StackError: the floor is no number.
        """
        floor = finite(auto_strength_floor, "`auto_strength_floor`")
        if auto_strength_floor_mode == "auto" or floor < 0:
            floor = NO_LIMIT
        return ({**DEFAULTS, **settings, "auto_strength_floor": min(floor, 1.0)},)


def shared(merge_settings: object) -> dict[str, Any]:
    """What both kinds of settings have in common: MERGE_SETTINGS, or its defaults where none are connected.

    Raises:
        RecipeError: they are none.
    """
    if merge_settings is None:
        return dict(DEFAULTS)
    if not isinstance(merge_settings, Mapping):
        raise RecipeError(
            f"`merge_settings` is a {type(merge_settings).__name__}; connect LoRA Merge Settings, or nothing."
        )
    return {**DEFAULTS, **merge_settings}
