"""LoRA Stack (Dynamic): up to ten LoRAs in one node, put before a stack."""

from dataclasses import dataclass
from typing import Any

from ..core.errors import StackError
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

TITLE = "LoRA Stack (Dynamic)"
SLOT_COUNT = 10

VISIBILITIES = ("simple", "advanced")
INPUT_MODES = ("dropdown", "text")

# What a slot holds when a script leaves an input out; the same values stand in its widgets.
SLOT_DEFAULTS: dict[str, Any] = {
    "enabled": True,
    "lora_name": "None",
    "lora_name_text": "None",
    "strength": 1.0,
    "model_strength": 1.0,
    "clip_strength": 1.0,
    "conflict_mode": "all",
    "key_filter": "all",
    "preserve": False,
}


@dataclass(frozen=True)
class Slot:
    """An active slot: its number, the name in use, and its other inputs by their names without the number."""

    number: int
    name: str | None
    inputs: dict[str, Any]


class LoRAStackDynamic:
    """Puts up to ten LoRAs before a stack."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "Up to ten LoRAs in one node. They come first, the incoming stack follows. Advanced shows separate"
        " model and CLIP strengths and the filters; what is hidden does not act."
    )
    SEARCH_ALIASES = ("lora list", "lora stacker", "multi lora")
    FUNCTION = "build_stack"
    RETURN_TYPES = (LORA_STACK,)
    RETURN_NAMES = ("lora_stack",)
    OUTPUT_TOOLTIPS = ("The LoRAs of this node, then those of the incoming stack.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        """Everything is optional, in the order in which workflows store the 94 widgets."""
        names = ["None", *bridge.list_loras()]
        inputs: dict[str, Any] = {
            "settings_visibility": (
                list(VISIBILITIES),
                {
                    "default": "simple",
                    "tooltip": "Simple: one strength per LoRA. Advanced: model and CLIP apart, and filters.",
                },
            ),
            "input_mode": (
                list(INPUT_MODES),
                {
                    "default": "dropdown",
                    "tooltip": "Choose LoRAs from a menu, or type or paste their names.",
                },
            ),
            "lora_count": (
                "INT",
                {
                    "default": 3,
                    "min": 1,
                    "max": SLOT_COUNT,
                    "step": 1,
                    "tooltip": "How many slots are in use.",
                },
            ),
        }
        for number in range(1, SLOT_COUNT + 1):
            inputs.update(_slot_widgets(number, names))
        inputs["lora_stack"] = (LORA_STACK, {"tooltip": "LoRAs that follow those of this node."})
        inputs["base_model_filter"] = (
            ["All"],
            {
                "default": "All",
                "tooltip": "Shorten the menus to LoRAs of one base model. The merge ignores it.",
            },
        )
        return {"required": {}, "optional": inputs}

    @classmethod
    def VALIDATE_INPUTS(cls, **_inputs: object) -> bool:  # noqa: N802
        """Leave every check to `build_stack`, which knows what is in use and says more than "not in list"."""
        return True

    @classmethod
    def IS_CHANGED(  # noqa: N802
        cls,
        input_mode: str | None = "dropdown",
        lora_count: int | None = 3,
        **inputs: Any,
    ) -> str:
        """A file replaced under the same name is another LoRA; a file merely touched is not."""
        count = SLOT_COUNT if lora_count is None else min(int(lora_count), SLOT_COUNT)
        return fingerprint(slot.name for slot in _active_slots(input_mode, count, inputs))

    def build_stack(
        self,
        settings_visibility: str = "simple",
        input_mode: str = "dropdown",
        lora_count: int = 3,
        lora_stack: list[Any] | None = None,
        **inputs: Any,
    ) -> tuple[list[Any]]:
        """Put the active slots before `lora_stack`, in a new list.

        Raises:
            StackError: a value out of range, or LoRAs that are not installed; all of them in one message.
        """
        visibility = widget_choice(settings_visibility, VISIBILITIES, f"`settings_visibility` of {TITLE}")
        widget_choice(input_mode, INPUT_MODES, f"`input_mode` of {TITLE}")
        if not 1 <= lora_count <= SLOT_COUNT:
            limits = f"it must lie between 1 and {SLOT_COUNT}"
            raise StackError(f"`lora_count` of {TITLE} is {lora_count}; {limits}.")
        own: list[Any] = []
        faults: list[str] = []
        for slot in _active_slots(input_mode, int(lora_count), inputs):
            if slot.name is None:
                continue
            try:
                own.append(stack_element(_slot_entry(slot, slot.name, visibility == "advanced")))
            except StackError as fault:
                faults.append(str(fault))
        if faults:
            raise StackError("\n".join(faults))
        return ([*own, *elements(lora_stack)],)


def _slot_widgets(number: int, names: list[str]) -> dict[str, widgets.Widget]:
    return {
        f"enabled_{number}": ("BOOLEAN", {"default": True, "tooltip": f"Whether LoRA {number} takes part."}),
        f"lora_name_{number}": (names, {"default": "None", "tooltip": f"LoRA {number}."}),
        f"lora_name_text_{number}": (
            "STRING",
            {"default": "None", "tooltip": f"Name of LoRA {number}; folder and file ending may be left out."},
        ),
        f"strength_{number}": widgets.strength(
            "How strongly it acts, on model and CLIP alike. Negative subtracts."
        ),
        f"model_strength_{number}": widgets.strength("How strongly it acts on the diffusion model."),
        f"clip_strength_{number}": widgets.strength("How strongly it acts on the text encoders."),
        f"conflict_mode_{number}": widgets.conflict_mode(),
        f"key_filter_{number}": widgets.key_filter(),
        f"preserve_{number}": widgets.preserve(
            "Preserved: this LoRA stays out of the blend; all of it is added on top, at its strength. Acts in"
            " the simple view as in the advanced one."
        ),
    }


def _active_slots(input_mode: str | None, count: int, inputs: dict[str, Any]) -> list[Slot]:
    """The slots that hold a LoRA and are enabled; their name is None where another node supplies it."""
    active = []
    for number in range(1, count + 1):
        values = {key: inputs.get(f"{key}_{number}", default) for key, default in SLOT_DEFAULTS.items()}
        source = "lora_name_text" if input_mode == "text" else "lora_name"
        name = None if input_mode is None else values[source]
        if values["enabled"] is not False and (name is None or not is_nothing(name)):
            active.append(Slot(number, name, values))
    return active


def _slot_entry(slot: Slot, name: str, advanced: bool) -> StackEntry:
    def strength(key: str) -> float:
        return widget_strength(slot.inputs[key], f"`{key}_{slot.number}` of {TITLE}")

    def word(key: str, known: tuple[str, ...]) -> str:
        return widget_choice(slot.inputs[key], known, f"`{key}_{slot.number}` of {TITLE}")

    installed = bridge.required_name(name, f"{TITLE}, slot {slot.number}")
    preserve = bool(slot.inputs["preserve"])
    if not advanced:
        force = strength("strength")
        return StackEntry(installed, force, force, preserve=preserve)
    return StackEntry(
        installed,
        strength("model_strength"),
        strength("clip_strength"),
        word("conflict_mode", CONFLICT_MODES),
        word("key_filter", KEY_FILTERS),
        preserve,
    )
