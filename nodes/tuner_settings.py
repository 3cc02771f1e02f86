"""What the AutoTuner's widgets, or its settings, ask for (`spec/nodes.md` §1.12, §1.19, §2.5, §7.4)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..autotuner.legacy_scores import SPECTRA
from ..cache.diffs import MODES
from ..core.errors import RecipeError
from ..core.numbers import finite
from ..core.params import unknown
from ..merging.recipe import Recipe
from ..merging.settings import is_one_of, recipe_of
from .merge_widgets import SCORING, refusal
from .session import MEMORY_MODES

MOST = 10  # candidates, and ranks
TUNING_ONLY = "tuning_only"
# By widget: words of earlier versions and other packs, and what each means.
OLD_WORDS: Mapping[str, Mapping[str, str]] = {
    "scoring_svd": {"enabled": "merge_quality"},
    # `v2` was what every workflow saved without asking for it; `v1` was chosen.
    "scoring_formula": {"v2": SCORING[0], "v1": SCORING[2]},
    "community_cache": {"enabled": "disabled", "download_only": "disabled", "upload_only": "disabled"},
}
SAID_OF_V2 = (
    f"`scoring_formula` is v2, another program's default; candidates are ranked by {SCORING[0]}. Choose"
    f" `{SCORING[1]}` to rank by that."
)
SAID_OF_CACHE = "`community_cache` does nothing: nothing is sent, and nothing fetched."
_TOLD = (
    "normalize_keys",
    "architecture_preset",
    "auto_strength_floor",
    "decision_smoothing",
    "smooth_slerp_gate",
)


@dataclass(frozen=True)
class Asked:
    """What is asked of a sweep.

    Attributes:
        recipe: what is not tuned.
        top_n: how many candidates are merged.
        selection: the rank that is applied.
        legacy: the legacy formula that ranks, `v1` or `v2`; empty for our own score.
        spectra: which effective ranks the legacy scores look at.
        is_tuning_only: apply nothing.
        is_cached: remember the result until the process ends.
        on_gpu: do element-wise work on ComfyUI's device.
        memory_mode: whether and how results outlive the process.
        diff_cache: mode and share of memory of what keeps multiplied-out deltas.
        evaluator: AUTOTUNER_EVALUATOR; None for none.
        told: the settings that a tuning result repeats, in the words they were given in.
        notes: what the user should know.
    """

    recipe: Recipe
    top_n: int = 3
    selection: int = 1
    legacy: str = ""
    spectra: str = "disabled"
    is_tuning_only: bool = False
    is_cached: bool = True
    on_gpu: bool = True
    memory_mode: str = "auto"
    diff_cache: tuple[str, float] = ("auto", 0.5)
    evaluator: Mapping[str, Any] | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def asked_of(settings: Mapping[str, Any]) -> Asked:
    """What OPTIMIZER_SETTINGS of the mode `autotuner`, or the node's widgets, ask for; what is absent is its default.

    Raises:
        RecipeError: they ask for something unknown.
        StackError: a number is none.
    """
    evaluator = settings.get("evaluator")
    if evaluator is not None and not isinstance(evaluator, Mapping):
        raise RecipeError(
            f"`evaluator` is a {type(evaluator).__name__}; connect Build AutoTuner Python Evaluator, or nothing."
        )
    formula = _word(settings, "scoring_formula", SCORING)
    community = _word(settings, "community_cache", ("disabled", "upload_and_download"))
    notes = [SAID_OF_V2] if settings.get("scoring_formula") == "v2" else []
    if community != "disabled":
        notes.append(SAID_OF_CACHE)
    share = finite(settings.get("diff_cache_ram_pct", 0.5), "`diff_cache_ram_pct`")
    device = _word(settings, "scoring_device", ("gpu", "cpu"))
    return Asked(
        recipe_of({name: value for name, value in settings.items() if name != "mode"}),
        _count(settings, "top_n", 3),
        _count(settings, "selection", 1),
        formula.split()[0] if formula != SCORING[0] else "",
        _word(settings, "scoring_svd", SPECTRA),
        _word(settings, "output_mode", ("merge", TUNING_ONLY)) == TUNING_ONLY,
        not is_one_of(settings.get("cache_patches"), ("disabled", False)),
        device == "gpu",
        _word(settings, "memory_mode", ("auto", *MEMORY_MODES)),
        (_word(settings, "diff_cache_mode", ("auto", *MODES)), min(max(share, 0.1), 0.9)),
        evaluator,
        {name: settings[name] for name in _TOLD if name in settings}
        | {"device": device, "scoring_formula": formula},
        tuple(notes),
    )


def holding(asked: Asked, hold_structural: bool) -> Asked:
    """The same, with what an optimizer's own widget says of structural LoRAs."""
    return replace(asked, recipe=replace(asked.recipe, hold_structural=hold_structural))


def refused(given: Mapping[str, Any]) -> str | bool:
    """What ComfyUI is told of words chosen in the tuner's menus; see `merge_widgets.refusal`."""
    return refusal(given, {name: tuple(known) for name, known in OLD_WORDS.items()})


def _word(settings: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    """A word; the first one is the default."""
    value = settings.get(name, known[0])
    value = OLD_WORDS.get(name, {}).get(value, value) if isinstance(value, str) else value
    if not isinstance(value, str) or value not in known:
        raise RecipeError(unknown(f"`{name}`", f"{value!s:.60}", dict.fromkeys(known)))
    return value


def _count(settings: Mapping[str, Any], name: str, default: int) -> int:
    value = finite(settings.get(name, default), f"`{name}`")
    if not 1 <= value <= MOST or value != int(value):
        raise RecipeError(f"`{name}` is {value:g}; it must be a whole number from 1 to {MOST}.")
    return int(value)
