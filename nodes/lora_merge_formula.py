"""LoRA Merge Formula: which LoRAs of a stack are merged first."""

from typing import Any

from ..merging.formula import parse
from .stack_entries import FORMULA, elements
from .types import CATEGORY, LORA_STACK


class LoRAMergeFormula:
    """Hangs a formula on a stack; the optimizer follows it."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "Merges some LoRAs of a stack first and their results after that: `(1+2):0.6 + 3:0.4`. Numbers count the"
        " stack from 1; a weight multiplies what it stands at. A LoRA that the formula does not name takes no part."
    )
    SEARCH_ALIASES = ("merge order", "lora formula")
    FUNCTION = "apply_formula"
    RETURN_TYPES = (LORA_STACK,)
    RETURN_NAMES = ("lora_stack",)
    OUTPUT_TOOLTIPS = ("The stack, with its formula.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": {
                "lora_stack": (
                    LORA_STACK,
                    {"tooltip": "The stack that the formula counts. It is not changed."},
                ),
                "formula": (
                    "STRING",
                    {"default": "", "tooltip": "Such as (1+2):0.6 + 3:0.4. Empty: the stack as it is."},
                ),
            }
        }

    def apply_formula(self, lora_stack: object, formula: str = "") -> tuple[list[Any]]:
        """The stack with the formula as its last element, in place of any earlier one.

        Raises:
            RecipeError: the formula cannot be read, or counts LoRAs that the stack does not have.
            StackError: the stack is none.
        """
        given = elements(lora_stack)
        if not str(formula).strip():
            return (given,)
        entries = [one for one in given if not (isinstance(one, dict) and FORMULA in one)]
        parse(str(formula), len(entries))
        return ([*entries, {FORMULA: str(formula)}],)
