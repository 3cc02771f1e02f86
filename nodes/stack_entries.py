"""LORA_STACK, as any pack fills it: read element by element, never changed, nothing left out unsaid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..core.errors import StackError
from ..core.numbers import finite
from ..merging.formula import parse, renumbered
from .types import CONFLICT_MODES, KEY_FILTERS, STRENGTH_LIMIT

FIELDS = ("name", "strength", "clip_strength", "conflict_mode", "key_filter", "preserve")

# The spellings in use for one thing; the first that is present counts.
NAME_KEYS = ("path", "lora_name", "lora", "name")
STRENGTH_KEYS = ("strength", "model_strength", "strength_model", "weight", "model_weight")
CLIP_KEYS = ("clip_strength", "strength_clip", "strengthTwo", "clip_weight")
SWITCH_KEYS = ("enabled", "on", "active")

SHOWN = 200  # characters of what another pack put into a stack

FORMULA = "_merge_formula"
PRECOMPUTED = "_precomputed_diffs"


@dataclass(frozen=True)
class StackEntry:
    """One LoRA of a stack.

    `name` is what the stack calls it, and `position` where it stood there, from 1; `tensors` are its tensors by
    key where the stack brings them along instead of a file, and `metadata` its header strings. `clip_strength`
    equals `strength` where the stack gave none.
    """

    name: str
    strength: float
    clip_strength: float
    conflict_mode: str = "all"
    key_filter: str = "all"
    preserve: bool = False
    tensors: dict[str, Tensor] | None = field(default=None, compare=False, repr=False)
    metadata: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    position: int = field(default=0, compare=False, repr=False)


def read_stack(lora_stack: object) -> tuple[list[StackEntry], list[str]]:
    """The entries of a LORA_STACK, and a sentence for each element that is left out or needs a remark.

    Elements may be tuples or lists `(name, model, clip[, conflict mode[, key filter[, preserve]]])`, or dicts
    in the spellings above. None is an empty stack.

    Raises:
        StackError: it is no list, or a strength is no finite number.
    """
    entries: list[StackEntry] = []
    notes: list[str] = []
    given_elements = [one for one in elements(lora_stack) if not _is_marker(one)]
    for position, element in enumerate(given_elements, start=1):
        where = f"Entry {position} of the LoRA stack"
        given = _named_fields(element, where, notes)
        entry = None if given is None else _entry(given, f"{where}, {given['name']!r:.{SHOWN}},", notes)
        if entry is not None:
            entries.append(replace(entry, position=position))
    return entries, notes + _duplicates(entries)


def merge_formula(lora_stack: object, entries: Sequence[StackEntry]) -> str:
    """The merge formula that a stack carries, counting `entries`; empty if it carries none.

    A formula counts all that stands in the stack, also what is left out of it; the last one counts.

    Raises:
        RecipeError: it cannot be read.
        StackError: it names a LoRA that is left out.
    """
    given = elements(lora_stack)
    texts = [str(one[FORMULA]) for one in given if _is_marker(one)]
    if not texts or not texts[-1].strip():
        return ""
    tree = parse(texts[-1], len(given) - len(texts))
    try:
        return renumbered(tree, {entry.position - 1: place for place, entry in enumerate(entries)})
    except KeyError as problem:
        raise StackError(
            f"The merge formula `{texts[-1]:.{SHOWN}}` names LoRA {problem.args[0] + 1}, which is left out of the"
            " stack: its strength is 0, or it names no LoRA. Take it out of the formula."
        ) from None


def _is_marker(element: object) -> bool:
    return isinstance(element, Mapping) and FORMULA in element


def elements(lora_stack: object) -> list[Any]:
    """A new list of the elements of a LORA_STACK, themselves untouched.

    Raises:
        StackError: it is neither a list nor None.
    """
    if lora_stack is None:
        return []
    if isinstance(lora_stack, (list, tuple)):
        return list(lora_stack)
    raise StackError(
        f"The LoRA stack is a {type(lora_stack).__name__}, not a list."
        " Connect the `lora_stack` output of a stack node."
    )


def stack_element(entry: StackEntry) -> tuple[object, ...]:
    """What our nodes emit: the three fields every pack reads, or all six where one of the others acts."""
    plain = (entry.name, entry.strength, entry.clip_strength)
    if entry.conflict_mode == "all" and entry.key_filter == "all" and not entry.preserve:
        return plain
    return (*plain, entry.conflict_mode, entry.key_filter, entry.preserve)


def widget_strength(value: object, where: str) -> float:
    """A strength from one of our own widgets.

    Raises:
        StackError: no finite number, or beyond the widget's range.
    """
    strength = finite(value, where)
    if abs(strength) > STRENGTH_LIMIT:
        raise StackError(
            f"{where} is {strength:g}; it must lie between {-STRENGTH_LIMIT:g} and {STRENGTH_LIMIT:g}."
        )
    return strength


def widget_choice(value: object, known: Sequence[str], where: str) -> str:
    """A word from one of our own menus.

    Raises:
        StackError: it is not in `known`.
    """
    if isinstance(value, str) and value in known:
        return value
    raise StackError(f"{where} is {value!r:.{SHOWN}}; known: {', '.join(known)}.")


def is_nothing(name: object) -> bool:
    """Whether a name says that no LoRA is meant."""
    return name is None or str(name).strip().lower() in ("", "none")


def _named_fields(element: object, where: str, notes: list[str]) -> dict[str, Any] | None:
    """An element's fields under the names of `FIELDS`; or None, with a note, where it holds no LoRA."""
    if isinstance(element, Mapping):
        return _from_mapping(element, where, notes)
    if not isinstance(element, (list, tuple)):
        what = "None" if element is None else f"a {type(element).__name__}, not a LoRA,"
        notes.append(f"{where} is {what} and is left out.")
    elif len(element) == 0 or is_nothing(element[0]):
        notes.append(f"{where} names no LoRA and is left out.")
    elif len(element) < 3:
        notes.append(
            f"{where}, {element[0]!r:.{SHOWN}}, has {len(element)} of the 3 fields it needs and is left out."
        )
    else:
        return dict(zip(FIELDS, element, strict=False))
    return None


def _from_mapping(element: Mapping[str, Any], where: str, notes: list[str]) -> dict[str, Any] | None:
    lora = element.get("lora")
    tensors = dict(lora) if isinstance(lora, Mapping) and lora else None
    texts = {key: value for key, value in element.items() if isinstance(value, str)}
    name = _first(texts, NAME_KEYS[::-1] if tensors else NAME_KEYS)
    if is_nothing(name):
        notes.append(f"{where} names no LoRA and is left out.")
    elif any(key in element and not _flag(element[key], f"{where}: `{key}`") for key in SWITCH_KEYS):
        notes.append(f"{where}, {name!r:.{SHOWN}}, is switched off and is left out.")
    elif not _is_empty(element.get(PRECOMPUTED)):
        notes.append(f"{where}, {name!r:.{SHOWN}}, holds another pack's half-finished merge and is left out.")
    else:
        given = {key: element.get(key) for key in (*FIELDS, "metadata")}
        strengths = {"strength": _first(element, STRENGTH_KEYS), "clip_strength": _first(element, CLIP_KEYS)}
        return {**given, **strengths, "name": name, "tensors": tensors}
    return None


def _entry(given: Mapping[str, Any], label: str, notes: list[str]) -> StackEntry | None:
    if given["strength"] is None:
        notes.append(f"{label} has no strength and is left out.")
        return None
    strength = finite(given["strength"], f"{label} has a strength that")
    clip = given["clip_strength"]
    clip_strength = strength if clip is None else finite(clip, f"{label} has a CLIP strength that")
    if strength == 0 and clip_strength == 0:
        notes.append(f"{label} has strength 0 and is left out.")
        return None
    metadata = given.get("metadata")
    return StackEntry(
        str(given["name"]),
        strength,
        clip_strength,
        _word(given.get("conflict_mode"), CONFLICT_MODES, f"{label} asks for conflict mode", notes),
        _word(given.get("key_filter"), KEY_FILTERS, f"{label} asks for key filter", notes),
        _flag(given.get("preserve"), f"{label} has a `preserve` that"),
        given.get("tensors"),
        {str(key): str(text) for key, text in metadata.items()} if isinstance(metadata, Mapping) else {},
    )


def _word(value: object, known: Sequence[str], what: str, notes: list[str]) -> str:
    if value is None:
        return "all"
    if isinstance(value, str) and value in known:
        return value
    notes.append(f"{what} {value!r:.{SHOWN}}, which is unknown here; `all` is used.")
    return "all"


def _flag(value: object, what: str) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in ("true", "1", "yes", "on")
    try:
        return bool(value)
    except (ValueError, RuntimeError):  # an array, or a tensor, of several values
        raise StackError(f"{what} is {value!r:.{SHOWN}}, neither true nor false.") from None


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, (Mapping, list, tuple, bool)) and not value)


def _first(given: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((given[key] for key in keys if given.get(key) is not None), None)


def _duplicates(entries: list[StackEntry]) -> list[str]:
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.name] = counts.get(entry.name, 0) + 1
    return [
        f"{name!r:.{SHOWN}} stands in the LoRA stack {count} times; each one counts."
        for name, count in counts.items()
        if count > 1
    ]
