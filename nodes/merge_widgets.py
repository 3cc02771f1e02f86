"""The widgets that say how to merge, on the optimizers and on the settings nodes alike."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .settings import known_words
from .widgets import Widget

MERGE_STRATEGY_OVERRIDE: Widget = (
    "STRING",
    {"default": "", "forceInput": True, "tooltip": "A merge method's name; empty: chosen."},
)


def words(options: Sequence[str], tooltip: str, default: str = "") -> Widget:
    """A choice; the first option is the default where none is given."""
    return list(options), {"default": default or options[0], "tooltip": tooltip}


def number(default: float, low: float, high: float, tooltip: str, step: float = 0.05) -> Widget:
    """A number in a range."""
    return "FLOAT", {"default": default, "min": low, "max": high, "step": step, "tooltip": tooltip}


def hold_structural() -> Widget:
    """Whether structural LoRAs stay out of the blend."""
    return "BOOLEAN", {
        "default": True,
        "label_on": "held out",
        "label_off": "blended",
        "tooltip": "LCM, Lightning, Turbo, Hyper, DPO and edit LoRAs are kept out of the blend and added on top,"
        " exactly; the report names them.",
    }


_WIDGETS: Mapping[str, Widget] = MappingProxyType(
    {
        "output_strength": number(
            1.0, -1.0, 10.0, "Strength of the merged result. Negative: what the merge suggests."
        ),
        "clip_strength_multiplier": number(
            1.0, 0.0, 10.0, "A further factor on the text encoders' part, for every LoRA alike."
        ),
        "auto_strength": words(
            ("enabled", "disabled"), "Turn a blend down that would be louder than its strongest LoRA."
        ),
        "auto_strength_floor": number(
            -1.0, -1.0, 1.0, "The least factor auto-strength may apply; negative or 0: no limit."
        ),
        "free_vram_between_passes": words(
            ("disabled", "enabled"), "Kept for saved workflows: the merge holds no memory between passes."
        ),
        "vram_budget": number(
            0.0, 0.0, 1.0, "Share of the free GPU memory in which merged patches may stay."
        ),
        "optimization_mode": words(
            ("per_prefix", "global", "additive"),
            "Choose a method for every weight, one for all, or add everything up.",
        ),
        "cache_patches": words(
            ("enabled", "disabled"), "Kept for saved workflows: ComfyUI's own cache holds the result."
        ),
        "patch_compression": words(
            ("smart", "aggressive", "disabled", "lazy"),
            "For results that have no low rank of their own: factors where they cost next to nothing (smart),"
            " always, with the error told (aggressive), never (disabled), or kept as their recipe and worked"
            " out when ComfyUI loads the weight, which saves memory (lazy).",
        ),
        "svd_device": words(("gpu", "cpu"), "Where element-wise work is done."),
        "normalize_keys": words(
            ("disabled", "enabled"),
            "Kept for saved workflows: names of every trainer are always read.",
            default="enabled",
        ),
        "sparsification": words(
            ("disabled", "dare", "della", "dare_conflict", "della_conflict"),
            "Set entries of every LoRA to zero before the merge; those on conflict only where LoRAs disagree.",
        ),
        "sparsification_density": number(0.7, 0.01, 1.0, "The share of entries that stays."),
        "dare_dampening": number(0.0, 0.0, 1.0, "How much less DARE scales up what it keeps."),
        "merge_refinement": words(
            ("none", "refine", "full"),
            "refine: orthogonalise, protect what one LoRA alone pushes, elect whole rows. full: also merge in a"
            " shared basis (KnOTS).",
        ),
        "strategy_set": words(
            ("full", "no_slerp", "basic"), "Which methods may be chosen without being asked for."
        ),
        "architecture_preset": words(
            ("auto", "sd_unet", "dit", "llm", "acestep"),
            "What TIES' density is chosen for; acestep is kept for saved workflows, and is dit.",
        ),
        "decision_smoothing": number(
            0.25, 0.0, 1.0, "How far the choice for a weight goes by its block: 0 not at all."
        ),
        "smooth_slerp_gate": (
            "BOOLEAN",
            {"default": False, "tooltip": "Kept for saved workflows: every choice is smoothed alike."},
        ),
        "auto_strength_floor_mode": words(
            ("auto", "manual"), "manual: auto_strength_floor is followed. auto: there is no limit."
        ),
        "star_eta": number(
            100.0,
            10.0,
            100.0,
            "Clean every LoRA by STAR: the percentage of its singular values' sum that stays. 100: off.",
            step=5.0,
        ),
        "tame_layers": number(
            0.0,
            0.0,
            1.0,
            "Turn LoRAs down where they are large beside the model's weight, by TAME. 0: off, 1: to the threshold.",
        ),
        "tame_threshold": number(
            0.3, 0.05, 2.0, "The size of a LoRA's change beside the model's weight from which TAME acts."
        ),
    }
)


def widgets(*names: str) -> dict[str, Widget]:
    """The widgets of these names, in this order."""
    return {name: _WIDGETS[name] for name in names}


def refusal(given: Mapping[str, Any]) -> str | bool:
    """What ComfyUI is told of words chosen in menus: a sentence where one was never offered, else True.

    ComfyUI asks us, and not its menus, since scripts and saved workflows use words of earlier versions.

    Args:
        given: by widget; None where a link brings the value, which cannot be known yet.
    """
    for name, value in given.items():
        options = _WIDGETS[name][0]
        known = {*options, *known_words(name)}
        if value is not None and value not in known:
            return f"`{name}` is {value!r:.60}; it must be one of {', '.join(options)}."
    return True
