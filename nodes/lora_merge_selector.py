"""Merge Selector: any candidate of a tuning result, merged again exactly as it was judged."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..autotuner.tuner_data import candidate_of, is_exact, lora_hash, recipe_of_candidate
from ..autotuner.tuner_report import candidate_lines
from ..core.errors import RecipeError, StackError
from ..core.log import log
from ..core.numbers import finite
from ..merging.recipe import Recipe
from . import bridge
from .merge_widgets import sockets, widgets
from .optimizing import Ready, applied, checked_strengths, merged, ready
from .types import CATEGORY, LORA_DATA, LORA_STACK, TUNER_DATA

OTHER_STACK = (
    "the stack is not the one that was tuned: other LoRAs, another order, or other strengths. What was best for that"
    " one need not be for this one"
)
BY_WORDS = (
    "the result holds no recipe for this rank, as another program wrote it, so its settings were followed"
)


class LoRAMergeSelector:
    """Merges a stack by one rank of a tuning result."""

    CATEGORY = CATEGORY
    DESCRIPTION = "Applies any rank of a tuning result: the same, bit for bit, as LoRA AutoTuner has judged."
    SEARCH_ALIASES = ("merge selector", "tuner rank")
    FUNCTION = "select_merge"
    RETURN_TYPES = ("MODEL", "CLIP", "STRING", LORA_DATA)
    RETURN_NAMES = ("model", "clip", "report", "lora_data")
    OUTPUT_TOOLTIPS = (
        "The model with the selected candidate.",
        "The CLIP with the selected candidate.",
        "What was selected, what it merged, and what is left of each LoRA.",
        "The merge, for Save Merged LoRA.",
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "The model the LoRAs were trained for. It is not changed."}),
                "lora_stack": (LORA_STACK, {"tooltip": "The stack that was tuned."}),
                "tuner_data": (TUNER_DATA, {"tooltip": "From LoRA AutoTuner, or from Load Tuner Data."}),
                **widgets("selection", "output_strength"),
            },
            "optional": {
                **sockets("clip"),
                **widgets(
                    "clip_strength_multiplier", "auto_strength_floor", "decision_smoothing", "vram_budget"
                ),
            },
        }

    def select_merge(
        self,
        model: Any,
        lora_stack: object,
        tuner_data: object,
        selection: int = 1,
        output_strength: float = 1.0,
        clip: Any | None = None,
        clip_strength_multiplier: float = 1.0,
        auto_strength_floor: float = -1.0,
        decision_smoothing: float = 0.25,
        vram_budget: float = 0.0,
    ) -> tuple[Any, Any, str, dict[str, Any] | None]:
        """Merge the stack by a rank and apply it; without such a rank, hand model and CLIP on and say why.

        Raises:
            AlloyError: a file, an entry or the stack as a whole cannot be merged.
        """
        strengths = checked_strengths(output_strength, clip_strength_multiplier)
        floor = finite(auto_strength_floor, "`auto_strength_floor`")
        try:
            rank = int(finite(selection, "`selection`"))
            found = candidate_of(tuner_data, rank)
            recipe, asked = _recipes(tuner_data, rank, floor, decision_smoothing)
        except (RecipeError, StackError) as problem:
            return model, clip, f"Nothing was applied: {problem}", None
        stack = ready(model, clip, lora_stack)
        if not stack.entries:
            return model, clip, stack.idle, None
        assert isinstance(tuner_data, Mapping)
        notes = _doubts(tuner_data, rank, stack)
        for note in notes:
            log.warning("Merge Selector: %s", note)
        device = bridge.work_device(tuner_data.get("device") != "cpu")
        made = merged(stack, recipe, asked, bridge.progress_bar(3), device)
        done = applied(model, clip, stack, made, *strengths)
        head = [f"Rank {rank} of the tuning result is applied.", *candidate_lines(found, rank)]
        report = "\n".join([*head, *(f"Note: {note}." for note in notes), "", done.report])
        return done.model, done.clip, report, done.lora_data


def _recipes(data: object, rank: int, floor: float, smoothing: object) -> tuple[Recipe, Recipe]:
    """A candidate's recipe and the tuned one; a floor that is set counts, the smoothing where the result has none."""
    recipe, asked = recipe_of_candidate(data, rank)
    if floor >= 0:
        recipe = replace(recipe, auto_strength_floor=min(floor, 1.0))
    if isinstance(data, Mapping) and "decision_smoothing" not in data and not is_exact(data, rank):
        recipe = replace(recipe, smoothing=finite(smoothing, "`decision_smoothing`"))
    return recipe, asked


def _doubts(data: Mapping[str, Any], rank: int, stack: Ready) -> list[str]:
    doubts = []
    tuned, here = data.get("lora_hash"), lora_hash([(entry.name, entry.strength) for entry in stack.read])
    if tuned and tuned != here:
        doubts.append(OTHER_STACK)
    if not is_exact(data, rank):
        doubts.append(BY_WORDS)
    return doubts
