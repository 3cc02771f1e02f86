"""Build AutoTuner Python Evaluator: which code is to judge a sweep's candidates, and how much it counts."""

import hashlib
import json
from typing import Any

from ..core.errors import RecipeError
from ..core.numbers import finite
from .merge_widgets import number, words
from .types import CATEGORY, EVALUATOR

COMBINE_MODES = ("blend", "external_only", "multiply")


class BuildAutoTunerPythonEvaluator:
    """Names a Python function for the AutoTuner; nothing is imported or run here."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "Names a Python function that judges candidates of LoRA AutoTuner. It is code: whoever gives you a workflow"
        " with this node chooses what runs on your machine, so it only runs where you have allowed it."
    )
    SEARCH_ALIASES = ("tuner evaluator", "external score")
    FUNCTION = "build"
    RETURN_TYPES = (EVALUATOR,)
    RETURN_NAMES = ("evaluator",)
    OUTPUT_TOOLTIPS = ("For LoRA AutoTuner and its settings.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": {
                "module_path": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "A Python file, or the name of a module that can be imported.",
                    },
                ),
                "callable_name": (
                    "STRING",
                    {
                        "default": "evaluate_candidate",
                        "tooltip": "The function in it: it is called with model, clip, lora_data, config, context and"
                        " analysis_summary, and returns a number from 0 to 1, or `score` and `details`.",
                    },
                ),
            },
            "optional": {
                "combine_mode": words(
                    COMBINE_MODES,
                    "How its score counts beside ours: a weighted mean, alone, or as a factor.",
                ),
                "weight": number(0.5, 0.0, 1.0, "Its share in `blend`."),
                "context_json": (
                    "STRING",
                    {"default": "{}", "multiline": True, "tooltip": "JSON that is handed to the function."},
                ),
            },
        }

    @classmethod
    def IS_CHANGED(cls, **given: object) -> str:  # noqa: N802
        """What the widgets hold is all that this node depends on."""
        return hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()

    def build(
        self,
        module_path: str,
        callable_name: str = "evaluate_candidate",
        combine_mode: str = "blend",
        weight: float = 0.5,
        context_json: str = "{}",
    ) -> tuple[dict[str, Any]]:
        """AUTOTUNER_EVALUATOR (`spec/nodes.md` §2.6).

        Raises:
            RecipeError: the context is not JSON, or the mode unknown.
            StackError: the weight is no number.
        """
        if combine_mode not in COMBINE_MODES:
            raise RecipeError(
                f"`combine_mode` is {combine_mode!r:.60}; it must be one of {', '.join(COMBINE_MODES)}."
            )
        return (
            {
                "module_path": str(module_path).strip(),
                "callable_name": str(callable_name).strip(),
                "combine_mode": combine_mode,
                "weight": finite(weight, "`weight`"),
                "context": _decoded(context_json),
            },
        )


def _decoded(text: str) -> Any:
    if not str(text).strip():
        return {}
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise RecipeError(f"`context_json` is not JSON: {problem}. Write an object such as {{}}.") from None
