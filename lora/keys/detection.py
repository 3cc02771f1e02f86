"""Which family a LoRA file belongs to, from the names of its modules and the shapes of their factors."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .names import INDEX, Architecture, Candidate, Family, Module, row_of
from .reading import is_bare_parameter, resolve, stem_of
from .table import ARCHITECTURES, key_map

Shapes: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]

# A name with one of these words is of the network's inside: a family that lacks it is the wrong one.
_INSIDE = re.compile("block|layer|stream|text|refiner|joint")
_BLOCKS = ("blocks_", "layers_", "refiner_")  # ends of what stands before a block's number
_STRAYS = 0.05  # share of other unknown names that does not matter
_STACK = 4  # fewer blocks than this say nothing about a model's depth


def detect(shapes: Mapping[str, Shapes]) -> Family | None:
    """The family of a file, or None if it is unknown.

    Args:
        shapes: each module's name, as in the file, with the shapes of its up and its down factor.
    """
    found = candidates(shapes)
    return found[0] if found else None


def candidates(shapes: Mapping[str, Shapes]) -> tuple[Family, ...]:
    """The families a file may belong to, the likeliest first.

    One family, as a rule. A file of a text encoder alone, or with few modules, may fit several: two files are
    of different families only if they share no candidate. Of families with the same names, one whose released
    shapes are all there excludes those that would have to be of another size, and one whose every block is
    there those that have more.

    Args:
        shapes: as for `detect`.
    """
    rows = _rows(shapes)
    stems = {stem for row in rows if (stem := stem_of(row.pattern)).endswith(_BLOCKS)}
    able = (one for one in ARCHITECTURES if not (text := one.stems()) or all(stem in text for stem in stems))
    found = [one for architecture in able if (one := _judge(architecture, rows)) is not None]
    if any(one.judged.is_released for one in found):
        found = [one for one in found if one.judged.is_released or not one.judged.is_likely]
    if any(one.is_complete for one in found):
        found = [one for one in found if one.is_complete or not one.judged.is_likely]
    if len(found) > 1:
        found.sort(key=lambda one: one.rank(rows), reverse=True)
    return tuple(one.judged.family for one in found)


@dataclass(frozen=True)
class _Row:
    """Modules of a file that differ in their first number alone, and are of one shape."""

    pattern: str
    shapes: Shapes
    names: list[str]
    indices: list[int]

    def ends(self) -> tuple[str, ...]:
        """The names with the lowest and the highest index: a family that knows both knows all between."""
        if len(self.names) == 1:
            return (self.names[0],)
        first, last = (self.indices.index(end(self.indices)) for end in (min, max))
        return self.names[first], self.names[last]


@dataclass(frozen=True)
class _Found:
    """A family by which all names are known and no shape is impossible."""

    judged: Candidate
    is_complete: bool

    def rank(self, rows: Sequence[_Row]) -> tuple[bool, float, int]:
        """What orders candidates: shapes first, then how many names are in this family's usual spelling."""
        return self.judged.is_likely, self.judged.preference, _written_by(self.judged.family, rows)


def _rows(shapes: Mapping[str, Shapes]) -> list[_Row]:
    rows: dict[tuple[str, Shapes], _Row] = {}
    for name, shape in shapes.items():
        row = row_of(name)
        pattern, index = row or (name, 0)
        found = rows.get((pattern, shape))
        if found is None:
            found = rows[pattern, shape] = _Row(pattern, shape, [], [])
        found.names.append(name)
        found.indices.append(index)
    return list(rows.values())


def _judge(architecture: Architecture, rows: Iterable[_Row]) -> _Found | None:
    known = key_map(architecture.family)
    modules: list[Module] = []
    stacks: dict[str, set[int]] = {}
    total = strays = 0
    for row in rows:
        total += len(row.names)
        routes = [resolve(name, known) for name in row.ends()]
        route = routes[0]
        if route is None or routes[-1] is None:
            if is_bare_parameter(row.pattern):
                total -= len(row.names)
                continue
            if _INSIDE.search(row.pattern):
                return None
            strays += len(row.names)
            continue
        modules.append(Module(route.target, *row.shapes, len(row.names)))
        if (place := row_of(route.target.weight)) is not None:
            stacks.setdefault(place.pattern.partition(INDEX)[0], set()).update(row.indices)
    if not modules or strays > _STRAYS * total:
        return None
    judged = architecture.judge(modules)
    if judged is None:
        return None
    return _Found(judged, judged.is_likely and _is_complete(stacks, known.depths()))


def _is_complete(stacks: Mapping[str, set[int]], depths: Mapping[str, int]) -> bool:
    deep = [(depths[stem], indices) for stem, indices in stacks.items() if depths.get(stem, 0) >= _STACK]
    return bool(deep) and all(len(indices) >= depth for depth, indices in deep)


def _written_by(family: Family, rows: Iterable[_Row]) -> int:
    """How many of the names are those under which this family's files are usually written."""
    own = {spelled for names in key_map(family).rows() for spelled in (names.kohya, names.diffusers)}
    return sum(
        len(row.names) if row.pattern in own else sum(name in own for name in row.names) for row in rows
    )
