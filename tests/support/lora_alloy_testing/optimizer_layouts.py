"""Stored widget arrays of the legacy optimizer and of the merge settings, and what each must become.

Typed by hand from the layouts' description; no value is a default, so that each place can be told from the others.
"""

from typing import Any

__all__ = ["MERGE_SETTINGS", "OPTIMIZER", "TODAY"]

# Today's values where a file lacks them.
TODAY: dict[str, Any] = {
    "output_strength": 1,
    "clip_strength_multiplier": 1,
    "auto_strength": "enabled",
    "auto_strength_floor": -1,
    "free_vram_between_passes": "disabled",
    "vram_budget": 0,
    "optimization_mode": "per_prefix",
    "cache_patches": "enabled",
    "patch_compression": "smart",
    "svd_device": "gpu",
    "normalize_keys": "enabled",
    "sparsification": "disabled",
    "sparsification_density": 0.7,
    "dare_dampening": 0,
    "merge_refinement": "none",
    "strategy_set": "full",
    "architecture_preset": "auto",
    "settings_source": "manual",
    "decision_smoothing": 0.25,
    "smooth_slerp_gate": False,
    "hold_structural": True,
}


def _expected(**stored: Any) -> list[Any]:
    return list((TODAY | stored).values())


_FOUR = {
    "output_strength": 0.9,
    "clip_strength_multiplier": 0.8,
    "auto_strength": "disabled",
    "free_vram_between_passes": "enabled",
}
_NINE = _FOUR | {
    "optimization_mode": "additive",
    "cache_patches": "disabled",
    "patch_compression": "aggressive",
    "svd_device": "cpu",
    "normalize_keys": "disabled",
}
_FIFTEEN = _NINE | {
    "sparsification": "dare",
    "sparsification_density": 0.6,
    "dare_dampening": 0.3,
    "merge_refinement": "refine",
    "strategy_set": "basic",
    "architecture_preset": "dit",
}
_TWENTY = _FIFTEEN | {
    "auto_strength_floor": 0.85,
    "vram_budget": 0.4,
    "settings_source": "from_tuner_data",
    "decision_smoothing": 0.5,
    "smooth_slerp_gate": True,
}


def _first(count: int, fields: dict[str, Any]) -> dict[str, Any]:
    return dict(list(fields.items())[:count])


# By name: the stored array, today's array.
OPTIMIZER: dict[str, tuple[list[Any], list[Any]]] = {
    "4": ([0.9, 0.8, "disabled", "enabled"], _expected(**_FOUR)),
    "5": (
        [0.9, 0.8, "disabled", "enabled", "weighted_sum_only"],
        _expected(**_first(5, _NINE)),
    ),
    "6": ([0.9, 0.8, "disabled", "enabled", "additive", "disabled"], _expected(**_first(6, _NINE))),
    "7": ([0.9, 0.8, "disabled", "enabled", "additive", "disabled", "all"], _expected(**_first(7, _NINE))),
    "7, a rank": (
        [0.9, 0.8, "disabled", "enabled", "additive", "disabled", 64],
        _expected(**_first(6, _NINE)),
    ),
    "8": (
        [0.9, 0.8, "disabled", "enabled", "additive", "disabled", "all", "cpu"],
        _expected(**_first(8, _NINE)),
    ),
    "9": (
        [0.9, 0.8, "disabled", "enabled", "additive", "disabled", "all", "cpu", "disabled"],
        _expected(**_NINE),
    ),
    "11": (
        [0.9, 0.8, "disabled", "enabled", "additive", "disabled", "all", "cpu", "disabled", "dare", 0.6],
        _expected(**_NINE, sparsification="dare", sparsification_density=0.6),
    ),
    "12": (
        [0.9, 0.8, "disabled", "enabled", "additive", "disabled", "all", "cpu", "disabled"]
        + ["dare", 0.6, "enhanced"],
        _expected(**_NINE, sparsification="dare", sparsification_density=0.6, merge_refinement="refine"),
    ),
    "13": (
        [0.9, 0.8, "disabled", "enabled", "additive", "disabled", "all", "cpu", "disabled"]
        + ["dare", 0.6, 0.3, "enhanced"],
        _expected(**_first(13, _FIFTEEN)),
    ),
    "14": (
        [0.9, 0.8, "disabled", "enabled", "additive", "disabled", "all", "cpu", "disabled"]
        + ["dare", 0.6, 0.3, "enhanced", "classic"],
        _expected(**_first(14, _FIFTEEN)),
    ),
    "15": (
        [0.9, 0.8, "disabled", "enabled", "additive", "disabled", "all", "cpu", "disabled"]
        + ["dare", 0.6, 0.3, "enhanced", "classic", "dit"],
        _expected(**_FIFTEEN),
    ),
    "16": (
        [0.9, 0.8, "disabled", "enabled", 0.4, "additive", "disabled", "all", "cpu", "disabled"]
        + ["dare", 0.6, 0.3, "enhanced", "classic", "dit"],
        _expected(**_FIFTEEN, vram_budget=0.4),
    ),
    "18": (
        [0.9, 0.8, "disabled", 0.85, "enabled", 0.4, "additive", "disabled", "aggressive", "cpu", "disabled"]
        + ["dare", 0.6, 0.3, "refine", "basic", "dit", "from_tuner_data"],
        _expected(**{**_TWENTY, "decision_smoothing": 0.25, "smooth_slerp_gate": False}),
    ),
    "20, the source last": (
        [0.9, 0.8, "disabled", 0.85, "enabled", 0.4, "additive", "disabled", "aggressive", "cpu", "disabled"]
        + ["dare", 0.6, 0.3, "refine", "basic", "dit", 0.5, True, "from_tuner_data"],
        _expected(**_TWENTY),
    ),
    "20, the source before the smoothing": (
        [0.9, 0.8, "disabled", 0.85, "enabled", 0.4, "additive", "disabled", "aggressive", "cpu", "disabled"]
        + ["dare", 0.6, 0.3, "refine", "basic", "dit", "from_tuner_data", 0.5, True],
        _expected(**_TWENTY),
    ),
}
MERGE_SETTINGS: dict[str, tuple[list[Any], list[Any]]] = {
    "7, automatic": (
        ["disabled", "dit", -1, 0.5, True, 0.4, "disabled"],
        ["disabled", "dit", -1, 0.5, True, 0.4, "disabled", "auto", 100, 0, 0.3],
    ),
    "7, a floor": (
        ["disabled", "dit", 0.6, 0.5, True, 0.4, "disabled"],
        ["disabled", "dit", 0.6, 0.5, True, 0.4, "disabled", "manual", 100, 0, 0.3],
    ),
    "8": (
        ["disabled", "dit", 0.6, 0.5, True, 0.4, "disabled", "manual"],
        ["disabled", "dit", 0.6, 0.5, True, 0.4, "disabled", "manual", 100, 0, 0.3],
    ),
}
