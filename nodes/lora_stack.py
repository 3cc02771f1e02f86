"""LoRA Stack: one LoRA, put at the end of a stack."""

from typing import Any

from . import bridge, widgets
from .fingerprint import fingerprint
from .stack_entries import (
    StackEntry,
    elements,
    is_nothing,
    stack_element,
    widget_choice,
    widget_strength,
)
from .types import CATEGORY, CONFLICT_MODES, KEY_FILTERS, LORA_STACK


class LoRAStack:
    """Adds one LoRA to a stack."""

    CATEGORY = CATEGORY
    DESCRIPTION = "Adds one LoRA to the end of a stack. Chain several of these, then connect an optimizer."
    SEARCH_ALIASES = ("lora list", "lora stacker", "multi lora")
    FUNCTION = "add_to_stack"
    RETURN_TYPES = (LORA_STACK,)
    RETURN_NAMES = ("lora_stack",)
    OUTPUT_TOOLTIPS = ("The incoming stack with this LoRA at its end.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": {"lora_name": (bridge.list_loras(), {"tooltip": "The LoRA to add."})},
            "optional": {
                "strength": widgets.strength(
                    "How strongly it acts, on model and CLIP alike. Negative subtracts."
                ),
                "conflict_mode": widgets.conflict_mode(),
                "key_filter": widgets.key_filter(),
                "preserve": widgets.preserve(
                    "Preserved: this LoRA stays out of the blend; all of it is added on top, at its strength."
                ),
                "lora_stack": (LORA_STACK, {"tooltip": "The LoRAs before this one."}),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(cls, **_inputs: object) -> bool:  # noqa: N802
        """Leave every check to `add_to_stack`: a LoRA that moved to another folder must not block it."""
        return True

    @classmethod
    def IS_CHANGED(cls, lora_name: str | None = None, **_inputs: object) -> str:  # noqa: N802
        """A file replaced under the same name is another LoRA; a file merely touched is not."""
        return fingerprint([lora_name])

    def add_to_stack(
        self,
        lora_name: str,
        strength: float = 1.0,
        conflict_mode: str = "all",
        key_filter: str = "all",
        lora_stack: list[Any] | None = None,
        preserve: bool = False,
    ) -> tuple[list[Any]]:
        """Append `lora_name` to a copy of `lora_stack`."""
        stack = elements(lora_stack)
        if is_nothing(lora_name):
            return (stack,)
        where = "LoRA Stack"
        force = widget_strength(strength, f"`strength` of {where}")
        entry = StackEntry(
            bridge.required_name(lora_name, where),
            force,
            force,
            widget_choice(conflict_mode, CONFLICT_MODES, f"`conflict_mode` of {where}"),
            widget_choice(key_filter, KEY_FILTERS, f"`key_filter` of {where}"),
            bool(preserve),
        )
        return ([*stack, stack_element(entry)],)
