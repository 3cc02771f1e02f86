"""Stored widget arrays of the AutoTuner's nodes, and what each must become.

Typed by hand from the layouts' description; no value is a default, so that each place can be told from the others.
"""

from typing import Any

__all__ = ["SELECTOR", "SETTINGS", "SETTINGS_TODAY", "TUNER", "TUNER_TODAY"]

TUNER_TODAY: dict[str, Any] = {
    "output_strength": 1,
    "clip_strength_multiplier": 1,
    "top_n": 3,
    "normalize_keys": "enabled",
    "scoring_svd": "disabled",
    "scoring_device": "gpu",
    "architecture_preset": "auto",
    "auto_strength_floor": -1,
    "community_cache": "disabled",
    "cache_patches": "enabled",
    "diff_cache_mode": "auto",
    "diff_cache_ram_pct": 0.5,
    "vram_budget": 0,
    "scoring_speed": "turbo",
    "scoring_formula": "own_foreign",
    "output_mode": "merge",
    "decision_smoothing": 0.25,
    "smooth_slerp_gate": False,
    "memory_mode": "auto",
    "selection": 1,
}


def _tuner(**stored: Any) -> list[Any]:
    return list((TUNER_TODAY | stored).values())


_FOUR = {"output_strength": 0.9, "clip_strength_multiplier": 0.8, "top_n": 5, "normalize_keys": "disabled"}
_SIX = _FOUR | {"scoring_svd": "merge_quality", "scoring_device": "cpu"}
_SEVEN = _SIX | {"architecture_preset": "dit"}
_THIRTEEN = _SEVEN | {
    "cache_patches": "disabled",
    "diff_cache_mode": "ram",
    "diff_cache_ram_pct": 0.7,
    "vram_budget": 0.3,
    "scoring_speed": "fast",
}
_FIFTEEN = _THIRTEEN | {"auto_strength_floor": 0.85, "output_mode": "tuning_only"}
_TWENTY = _FIFTEEN | {
    "scoring_formula": "v1 (legacy)",
    "decision_smoothing": 0.5,
    "smooth_slerp_gate": True,
    "memory_mode": "read_only",
    "selection": 2,
}
_HEAD = [0.9, 0.8, 5, "disabled", "enabled", "cpu", "dit"]
_LATER = [
    *_HEAD[:4],
    "merge_quality",
    "cpu",
    "dit",
    0.85,
    "upload_only",
    "disabled",
    "ram",
    0.7,
    0.3,
    "fast",
    "v1",
]

# By name: the stored array, today's array.
TUNER: dict[str, tuple[list[Any], list[Any]]] = {
    "4": (_HEAD[:4], _tuner(**_FOUR)),
    "6": (_HEAD[:6], _tuner(**_SIX)),
    "7": (_HEAD, _tuner(**_SEVEN)),
    "8, that recorded": ([*_HEAD, "enabled"], _tuner(**_SEVEN)),
    "9": ([*_HEAD, "disabled", 0.3], _tuner(**_SEVEN, vram_budget=0.3)),
    "10": (
        [*_HEAD, "disabled", "ram", 0.3],
        _tuner(**_SEVEN, diff_cache_mode="ram", vram_budget=0.3),
    ),
    "11": (
        [*_HEAD, "disabled", "ram", 0.7, 0.3],
        _tuner(**_SEVEN, diff_cache_mode="ram", diff_cache_ram_pct=0.7, vram_budget=0.3),
    ),
    "12": (
        [*_HEAD, "enabled", "disabled", "ram", 0.7, 0.3],
        _tuner(**(_THIRTEEN | {"scoring_speed": "turbo"})),
    ),
    "13": ([*_HEAD, "enabled", "disabled", "ram", 0.7, 0.3, "fast"], _tuner(**_THIRTEEN)),
    "15": (
        [*_HEAD, 0.85, "enabled", "disabled", "ram", 0.7, 0.3, "fast", "tuning_only"],
        _tuner(**_FIFTEEN),
    ),
    "18": (
        [*_LATER, "tuning_only", 0.5, True],
        _tuner(**(_TWENTY | {"memory_mode": "auto", "selection": 1})),
    ),
    "19": ([*_LATER, "tuning_only", 0.5, True, "read_only"], _tuner(**(_TWENTY | {"selection": 1}))),
    "20": ([*_LATER, "tuning_only", 0.5, True, "read_only", 2], _tuner(**_TWENTY)),
    "20, the default formula": (
        [*_LATER[:-1], "v2", "tuning_only", 0.5, True, "read_only", 2],
        _tuner(**(_TWENTY | {"scoring_formula": "own_foreign"})),
    ),
    "21, that recorded": ([*_LATER, "tuning_only", 0.5, True, "read_only", 2, "enabled"], _tuner(**_TWENTY)),
}

SETTINGS_TODAY: dict[str, Any] = {
    "top_n": 3,
    "scoring_svd": "disabled",
    "scoring_device": "gpu",
    "scoring_speed": "turbo",
    "scoring_formula": "own_foreign",
    "diff_cache_mode": "auto",
    "diff_cache_ram_pct": 0.5,
    "community_cache": "disabled",
    "memory_mode": "auto",
    "selection": 1,
}


def _settings(**stored: Any) -> list[Any]:
    return list((SETTINGS_TODAY | stored).values())


_EIGHT = {
    "top_n": 5,
    "scoring_svd": "merge_quality",
    "scoring_device": "cpu",
    "scoring_speed": "full",
    "diff_cache_mode": "disk",
    "diff_cache_ram_pct": 0.3,
}
_STORED = [5, "enabled", "cpu", "full", "v2", "disk", 0.3, "enabled"]
SETTINGS: dict[str, tuple[list[Any], list[Any]]] = {
    "8, that recorded": (_STORED, _settings(**_EIGHT)),
    "9": ([*_STORED, "disabled"], _settings(**_EIGHT, memory_mode="disabled")),
    "10": ([*_STORED, "disabled", 4], _settings(**_EIGHT, memory_mode="disabled", selection=4)),
    "11, that recorded": (
        [*_STORED[:-1], "upload_only", "disabled", 4, "enabled"],
        _settings(**_EIGHT, memory_mode="disabled", selection=4),
    ),
}

SELECTOR: dict[str, tuple[list[Any], list[Any]]] = {
    "3": ([2, 0.9, 0.8], [2, 0.9, 0.8, -1, 0.25, 0]),
    "4": ([2, 0.9, 0.8, 0.3], [2, 0.9, 0.8, -1, 0.25, 0.3]),
}
