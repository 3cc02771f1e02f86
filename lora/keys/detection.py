"""Which family a LoRA file belongs to, from the names of its modules and the shapes of their factors."""

import re
from collections.abc import Iterable, Mapping

from .names import Architecture, Candidate, Family, Module
from .reading import resolve
from .table import ARCHITECTURES, key_map, names_of

# A name with one of these words is of the network's inside: a family that lacks it is the wrong one.
_INSIDE = re.compile("block|layer|stream|text")
_STRAYS = 0.05  # share of other unknown names that does not matter


def detect(shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> Family | None:
    """The family of a file, or None if it is unknown.

    Args:
        shapes: each module's name, as in the file, with the shapes of its up and its down factor.
    """
    found = candidates(shapes)
    return found[0] if found else None


def candidates(shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[Family, ...]:
    """The families a file may belong to, the likeliest first.

    One family, as a rule. A file of a text encoder alone, or with few modules, may fit several: two files are
    of different families only if they share no candidate.

    Args:
        shapes: as for `detect`.
    """
    found = [one for architecture in ARCHITECTURES if (one := _judge(architecture, shapes)) is not None]
    if len(found) > 1:
        found.sort(key=lambda one: (one.is_likely, _written_by(one.family, shapes)), reverse=True)
    return tuple(one.family for one in found)


def _judge(
    architecture: Architecture, shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
) -> Candidate | None:
    known = key_map(architecture.family)
    modules: list[Module] = []
    for name, (up, down) in shapes.items():
        route = resolve(name, known)
        if route is not None:
            modules.append(Module(route.target, up, down))
        elif _INSIDE.search(name):
            return None
    strays = len(shapes) - len(modules)
    if not modules or strays > _STRAYS * len(shapes):
        return None
    return architecture.judge(modules)


def _written_by(family: Family, shapes: Iterable[str]) -> int:
    """How many of the names are those under which this family's files are usually written."""
    own = {spelled for names in names_of(family).values() for spelled in (names.kohya, names.diffusers)}
    return sum(name in own for name in shapes)
