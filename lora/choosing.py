"""Which family a stack is of: what its files may belong to, and what the model at hand is."""

from collections.abc import Sequence
from math import prod

from ..core.errors import StackError
from . import keys
from .entries import Entry, Model
from .formats import Module
from .keys import Family


def family_of(entries: Sequence[Entry], model: Model | None) -> Family | None:
    """The family that every entry may belong to, and the model too if it is of one we know.

    Entries of unknown families go with any.

    Raises:
        StackError: entries are of different families, or of another than the model.
    """
    expected = _families_of(model) if model else ()
    if model is not None and expected:
        _refuse_wrong(entries, model, expected)
    common = _common(entries)
    if not common:
        return None
    ours = [family for family in common for one in expected if one.key == family.key]
    if ours:
        # The model itself shows its widths, unless its weights are packed.
        shown = next(one for one in expected if one.key == ours[0].key)
        return ours[0] if shown == keys.family(shown.key) else shown
    best = common[0]
    return None if model is not None and not _has_names_of(model, best, entries) else best


def _common(entries: Sequence[Entry]) -> list[Family]:
    """The families that all entries may belong to, the likeliest to all of them together first."""
    telling = [entry for entry in entries if entry.file.families]
    if not telling:
        return []
    likely = [[family.key for family in entry.file.families] for entry in telling]
    common = [one.key for one in keys.FAMILIES if all(one.key in found for found in likely)]
    if not common:
        _refuse_mixed(telling)
    common.sort(key=lambda key: sum(found.index(key) for found in likely))
    return [_sized(key, telling) for key in common]


def _sized(key: str, telling: Sequence[Entry]) -> Family:
    """The family in the size that the files show."""
    released = keys.family(key)
    found = (one for entry in telling for one in entry.file.families if one.key == key)
    # A file of text encoders alone does not show the model's width; any other that differs is evidence.
    return next((one for one in found if one != released), released)


def _refuse_mixed(telling: Sequence[Entry]) -> None:
    sides: dict[str, list[str]] = {}
    for entry in telling:
        sides.setdefault(entry.file.families[0].title, []).append(f"`{entry.file.label}`")
    found = "; ".join(f"{title}: {', '.join(labels)}" for title, labels in sorted(sides.items()))
    raise StackError(
        f"The stack mixes LoRAs of {len(sides)} model families, which cannot be merged. {found}. Keep the"
        " LoRAs of one family."
    )


def _families_of(model: Model) -> tuple[Family, ...]:
    """What the model may be, from the names and the shapes of its weights; none if it is of no family we know."""
    weights = {route.target.weight: route for route in model.known.values() if not route.target.is_clip}
    shapes = {}
    for weight in weights:
        size = model.shapes.get(weight)
        shapes[weight] = ((size[0], 1), (1, *size[1:])) if size else ((), ())
    return keys.candidates(shapes)


def _refuse_wrong(entries: Sequence[Entry], model: Model, expected: Sequence[Family]) -> None:
    """Stop where a LoRA is of another family and most of it has no place in the model, or not its size."""
    known = {family.key for family in expected}
    wrong = []
    for entry in entries:
        families = entry.file.families
        if not families or known & {family.key for family in families}:
            continue
        modules = [module for module in entry.file.modules.values() if not keys.is_text(module.name)]
        lost = sum(not _fits(module, model) for module in modules)
        if 2 * lost > len(modules):
            count = (
                f"none of its {lost} modules is" if lost == len(modules) else f"{lost} of its modules are not"
            )
            wrong.append(
                f"`{entry.file.label}` is for {families[0].title}, and the model is {expected[0].title}: {count} in"
                " this model in that size"
            )
    if wrong:
        raise StackError(
            f"{'; '.join(wrong)}. Load the model these LoRAs were trained for, or take them out of the stack."
        )


def _fits(module: Module, model: Model) -> bool:
    route = keys.resolve(module.name, model.known)
    if route is None:
        return False
    size = model.shapes.get(route.target.weight)
    if size is None or module.shape is None or module.parameter != "weight":
        return True
    part = route.target.part
    sizes = list(size)
    if part is not None:
        sizes[part.axis] = part.length
    return (module.shape[0], prod(module.shape[1:])) == (sizes[0], prod(sizes[1:]))


def _has_names_of(model: Model, family: Family, entries: Sequence[Entry]) -> bool:
    """Whether the model's weights go by the family's names, where the model itself is of no family we know: those
    of an invented one may be others, though its LoRAs in diffusers' names look like Flux's.
    """
    routes = (keys.resolve(name, model.known) for entry in entries for name in entry.file.modules)
    led_to = {route.target.weight for route in routes if route and not route.target.is_clip}
    known = keys.key_map(family)
    return 2 * sum(known.get(weight) is not None for weight in led_to) >= len(led_to)
