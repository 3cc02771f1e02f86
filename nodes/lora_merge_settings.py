"""LoRA Merge Settings: what the settings nodes have in common."""

from typing import Any

from .merge_widgets import widgets
from .stack_entries import finite
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
    """The settings that seldom change, for LoRA Optimizer Settings."""

    CATEGORY = CATEGORY
    DESCRIPTION = "Settings that seldom change: smoothing, auto-strength's floor, and cleaning of each LoRA."
    SEARCH_ALIASES = ("merge settings", "lora cleaning")
    FUNCTION = "build_settings"
    RETURN_TYPES = (MERGE_SETTINGS,)
    RETURN_NAMES = ("merge_settings",)
    OUTPUT_TOOLTIPS = ("For LoRA Optimizer Settings.",)

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
