"""The widgets that say how to merge, on the optimizers and on the settings nodes alike."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..autotuner.legacy_scores import SPECTRA
from ..merging.settings import known_words
from .types import LORA_STACK
from .widgets import Widget

SCORING = ("own_foreign", "v2 (legacy)", "v1 (legacy)")
NO_OTHERS: Mapping[str, Sequence[str]] = MappingProxyType({})

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


def count(default: int, low: int, high: int, tooltip: str) -> Widget:
    """A whole number in a range."""
    return "INT", {"default": default, "min": low, "max": high, "step": 1, "tooltip": tooltip}


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
            ("auto", "sd_unet", "dit", "acestep_dit", "llm"),
            "What TIES' density is chosen for; acestep_dit is kept for saved workflows, and is dit.",
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
        "top_n": count(
            3, 1, 10, "How many candidates are merged and measured; the others are only predicted."
        ),
        "selection": count(1, 1, 10, "The rank that is applied: 1 is the best."),
        "scoring_svd": words(
            SPECTRA,
            "For the legacy scores alone: which effective ranks they look at, of whole results (merge_quality), of"
            " low-rank factors (lora_rank), or of both (full).",
        ),
        "scoring_device": words(
            ("cpu", "gpu"), "Where element-wise work of the sweep and of its replays is done.", default="gpu"
        ),
        "scoring_speed": words(
            ("full", "fast", "turbo", "turbo+"),
            "Kept for saved workflows: every candidate is merged on every target, which is fast enough.",
            default="turbo",
        ),
        "scoring_formula": words(
            SCORING,
            "What candidates are ranked by. own_foreign: how much of every LoRA is left, and how little else is there;"
            " the legacy formulas rank by how even and how sparse a merge is, which tells little of its quality.",
        ),
        "diff_cache_mode": words(
            ("disabled", "auto", "ram", "disk"),
            "Where LoRAs that an element-wise method has multiplied out are kept for the next candidate. auto measures"
            " whether that pays; the result is the same.",
            default="auto",
        ),
        "diff_cache_ram_pct": number(0.5, 0.1, 0.9, "The share of free memory that this cache may take."),
        "community_cache": words(
            ("disabled", "upload_and_download"),
            "Kept for saved workflows: it does nothing. Nothing is sent anywhere, and nothing fetched.",
        ),
        "memory_mode": words(
            ("disabled", "auto", "auto_ignore_strength", "read_only", "clear_and_run"),
            "What outlives ComfyUI: auto remembers the analysis, rankings and merges, and finds them again by content;"
            " auto_ignore_strength takes a ranking of other strengths, too; clear_and_run tunes this stack anew.",
            default="auto",
        ),
        "output_mode": words(
            ("merge", "tuning_only"),
            "merge applies the selected candidate; tuning_only hands model and CLIP on as they are.",
        ),
    }
)


_SOCKETS: Mapping[str, Widget] = MappingProxyType(
    {
        "model": ("MODEL", {"tooltip": "The model the LoRAs were trained for. It is not changed."}),
        "lora_stack": (LORA_STACK, {"tooltip": "A stack of LoRAs, from this pack or any other."}),
        "clip": ("CLIP", {"tooltip": "The text encoders; without them only the model is changed."}),
    }
)


def sockets(*names: str) -> dict[str, Widget]:
    """What every merging node is connected to, by these names, in this order."""
    return {name: _SOCKETS[name] for name in names}


def widgets(*names: str) -> dict[str, Widget]:
    """The widgets of these names, in this order."""
    return {name: _WIDGETS[name] for name in names}


def refusal(given: Mapping[str, Any], others: Mapping[str, Sequence[str]] = NO_OTHERS) -> str | bool:
    """What ComfyUI is told of words chosen in menus: a sentence where one was never offered, else True.

    ComfyUI asks us, and not its menus, since scripts and saved workflows use words of earlier versions.

    Args:
        given: by widget; None where a link brings the value, which cannot be known yet.
        others: further words that are known, by widget.
    """
    for name, value in given.items():
        options = _WIDGETS[name][0]
        known = {*options, *known_words(name), *others.get(name, ())}
        if value is not None and value not in known:
            return f"`{name}` is {value!r:.60}; it must be one of {', '.join(options)}."
    return True
