"""The families we know, in order, and what is looked up in them: routes, spellings, parts."""

from functools import lru_cache
from math import prod
from types import MappingProxyType

from ...core.errors import RecipeError
from ...core.params import unknown
from ..target import TEXT_ENCODERS, Part, Route, Target
from . import flux, sd2, sd15, sdxl
from .names import MODEL, Architecture, Family, KeyMap, Names, flat
from .text import CLIP_G, CLIP_H, CLIP_L, T5

# Where a file may belong to several, and nothing speaks for one of them, the first wins.
ARCHITECTURES: tuple[Architecture, ...] = (
    sd15.ARCHITECTURE,
    sdxl.ARCHITECTURE,
    flux.ARCHITECTURE,
    sd2.ARCHITECTURE,
)
FAMILIES: tuple[Family, ...] = tuple(architecture.family for architecture in ARCHITECTURES)
NAMINGS = ("comfyui", "kohya", "diffusers")

_NUMBERED = {CLIP_L: "te1", CLIP_H: "te1", CLIP_G: "te2", T5: "te3"}  # as kohya's trainers count
_BY_KEY = {architecture.family.key: architecture for architecture in ARCHITECTURES}


def family(key: str) -> Family:
    """The family called `key`, in its released size.

    Raises:
        RecipeError: no family is called so.
    """
    if key not in _BY_KEY:
        raise RecipeError(unknown("model family", key, _BY_KEY))
    return _BY_KEY[key].family


@lru_cache(maxsize=8)
def key_map(family: Family) -> KeyMap:
    """Every spelling of the family's modules that needs no rewriting, and where it leads.

    These are ComfyUI's dotted names, kohya's flattened ones, diffusers' dotted and flattened ones, of the
    model and of its text encoders; `resolve` finds all others through them. Built once, in milliseconds.
    """
    routes: dict[str, Route] = {}
    for names in names_of(family).values():
        straight = Route(names.target)
        foreign = Route(names.target, swap_halves=True) if names.swapped else straight
        if names.target.part is None:
            routes[names.target.weight] = straight
        routes[names.comfyui] = straight
        if names.kohya is not None:
            routes[names.kohya] = straight
        if names.diffusers is not None:
            routes[names.diffusers] = foreign
        for name in names.others:
            routes[name] = foreign
    return MappingProxyType(routes)


@lru_cache(maxsize=8)
def names_of(family: Family) -> dict[Target, Names]:
    """The names of every target of `family`."""
    return {names.target: names for names in _BY_KEY[family.key].names(family)}


def parts(target_weight: str, rows: int, family: Family | None) -> tuple[Part, ...] | None:
    """The parts of a fused weight, in order: q, k, v, or q, k, v, mlp.

    Args:
        target_weight: a `Target.weight`.
        rows: the height of the whole weight; parts are measured from it, not from the released model.
        family: what the weight belongs to.

    Returns:
        Parts that cover all rows; None if the weight is not fused, or `rows` does not divide as it should.
    """
    return None if family is None else _BY_KEY[family.key].parts(target_weight, rows)


def unflattened(target_weight: str, shape: tuple[int, ...], family: Family) -> tuple[int, ...]:
    """The shape of a weight that a file may know as a matrix only: LyCORIS flattens kernels into columns.

    Args:
        target_weight: a `Target.weight`.
        shape: as the file's factors show it.
        family: what the weight belongs to.
    """
    kernel = _BY_KEY[family.key].kernel(target_weight)
    if len(shape) != 2 or not kernel or shape[1] % prod(kernel):
        return shape
    return shape[0], shape[1] // prod(kernel), *kernel


def rows(target_weight: str, family: Family) -> int:
    """The height of a fused weight of a family, from the parts that are named; 0 if it is not fused."""
    return max(
        (
            target.part.start + target.part.length
            for target in names_of(family)
            if target.weight == target_weight and target.part is not None
        ),
        default=0,
    )


def spell(target: Target, naming: str, family: Family | None) -> str | None:
    """The module name under which a file in `naming` holds `target`; `resolve` leads back from it.

    If the route back has `swap_halves`, the writer exchanges the two row halves as the reader will.

    Args:
        target: what the name is for.
        naming: `comfyui` (read by every version of ComfyUI), `kohya` or `diffusers` (PEFT's names).
        family: as detected, since parts of fused weights are named by its `hidden`. None names any whole
            weight by general rules, also one that is a `loose_name`.

    Returns:
        None if `naming` has no name for it: parts in kohya's, fused weights in diffusers'.

    Raises:
        ValueError: there is no such naming.
    """
    if naming not in NAMINGS:
        raise ValueError(unknown("naming", naming, dict.fromkeys(NAMINGS)))
    names = names_of(family).get(target) if family is not None else None
    if names is not None:
        return getattr(names, naming)
    if target.part is not None or naming == "diffusers":
        return None
    if naming == "comfyui":
        return _flattened(target.weight) if _is_loose(target.weight) else target.weight
    return _flattened(target.weight) if family is None else None


def _is_loose(weight: str) -> bool:
    """Whether the path below the component is flattened: such a name ComfyUI knows by kohya's prefix only."""
    if weight.startswith(TEXT_ENCODERS):
        return ".transformer." not in weight
    return "." not in weight.removeprefix(MODEL)


def _flattened(weight: str) -> str | None:
    """The name kohya's rule gives a weight of any architecture; None for an encoder without a number."""
    if not weight.startswith(TEXT_ENCODERS):
        return "lora_unet_" + flat(weight.removeprefix(MODEL))
    encoder, _, path = weight.removeprefix(TEXT_ENCODERS).partition(".")
    number = _NUMBERED.get(encoder, encoder)
    return f"lora_{number}_{flat(path.removeprefix('transformer.'))}" if number.startswith("te") else None
