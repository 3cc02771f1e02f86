"""From modules to groups: where every name leads, and the coarsest common partition of each weight."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ..core.errors import StackError
from . import keys
from .entries import Contribution, Entry, Group, Model
from .file import LoraFile
from .formats import Module
from .keys import Family
from .target import Part, Route, Target

SHOWN = 4


def led(name: str, family: Family | None, model: Model | None) -> Route | None:
    """The route of a name: by the model's own map, else by the family's if the model has what it gives."""
    if model is not None and (route := keys.resolve(name, model.known)):
        return route
    offline = keys.resolve(name, keys.key_map(family)) if family else None
    if offline is None or model is None:
        return offline
    spelled = keys.spell(offline.target, "comfyui", family)
    known = keys.resolve(spelled, model.known) if spelled else None
    return replace(known, swap_halves=offline.swap_halves) if known else None


class Table:
    """Contributions by weight, before partitions are settled."""

    def __init__(self, family: Family | None, model: Model | None) -> None:
        self.family = family
        self.model = model
        self.spellings: dict[Target, str] = {}
        self.unmatched: list[list[str]] = []
        self._weights: dict[str, list[tuple[Part | None, Contribution]]] = {}
        self._problems: list[str] = []

    def add(self, index: int, entry: Entry) -> None:
        """Lead every module of one entry to its target."""
        lost: list[str] = []
        taken: dict[Target, Module] = {}
        for name, module in entry.file.modules.items():
            route = self._route(name)
            if route is None:
                lost.append(name)
                continue
            if route.target in taken:
                self._twice(entry.file, route.target, taken[route.target], module)
                continue
            taken[route.target] = module
            contribution = Contribution(index, module, route.swap_halves)
            self._weights.setdefault(route.target.weight, []).append((route.target.part, contribution))
        self.unmatched.append(lost)

    def _route(self, name: str) -> Route | None:
        route = led(name, self.family, self.model)
        if route is not None or self.model is not None:
            return route
        target = Target(keys.loose_name(name))
        if "." in name or target not in self.spellings:
            self.spellings[target] = name
        return Route(target)

    def _twice(self, file: LoraFile, target: Target, first: Module, second: Module) -> None:
        one, other = file.load(first), file.load(second)
        if one.scale == other.scale and one.up.equal(other.up) and one.down.equal(other.down):
            return
        self._problems.append(
            f"`{first.name}` and `{second.name}` of `{file.label}` are the same target, {target}, with"
            f" different"
            " values"
        )

    def groups(self, entries: Sequence[Entry]) -> tuple[Group, ...]:
        """Groups on the coarsest common partition of each weight, shapes checked.

        Raises:
            StackError: shapes disagree; all of them are named.
        """
        rank = {
            index: place
            for place, index in enumerate(
                sorted(
                    range(len(entries)),
                    key=lambda index: (entries[index].file.sha256, entries[index].preserve),
                )
            )
        }
        groups: list[Group] = []
        for weight, found in self._weights.items():
            found.sort(key=lambda pair: rank[pair[1].entry])
            groups += self._partitioned(weight, found, entries)
        if self._problems:
            shown = "; ".join(self._problems[:SHOWN])
            more = f"; and {len(self._problems) - SHOWN} more" if len(self._problems) > SHOWN else ""
            raise StackError(
                f"The stack does not fit together: {shown}{more}. These LoRAs are for different models, or"
                f" damaged;"
                " keep those of one model."
            )
        order = sorted(groups, key=lambda group: (group.target.is_clip, _natural(group.target)))
        return tuple(order)

    def _partitioned(
        self, weight: str, found: Sequence[tuple[Part | None, Contribution]], entries: Sequence[Entry]
    ) -> list[Group]:
        cells = self._cells(weight, found)
        shape = self.model.shapes.get(weight) if self.model else None
        made: list[Group] = []
        for cell in cells:
            taken = [
                contribution if cell == part else replace(contribution, part=_within(cell, part))
                for part, contribution in found
                if _covers(part, cell)
            ]
            if taken:
                made.append(self._group(Target(weight, cell), taken, shape, entries))
        return made

    def _cells(self, weight: str, found: Sequence[tuple[Part | None, Contribution]]) -> list[Part | None]:
        given = {part for part, _ in found}
        rows = next((contribution.module.shape[0] for part, contribution in found if part is None), None)
        if given == {None}:
            return [None]
        named = keys.parts(weight, rows, self.family) if rows and self.family else None
        axes = {part.axis for part in given if part}
        if len(axes) > 1:
            self._problems.append(f"`{weight}` is split by rows in one file and by columns in another")
            return []
        axis = axes.pop()
        edges = {edge for part in given if part for edge in (part.start, part.start + part.length)}
        if None in given:
            edges |= {0, rows or 0}
            edges |= {edge for part in named or () for edge in (part.start, part.start + part.length)}
        steps = sorted(edges)
        return [Part(axis, start, end - start) for start, end in zip(steps, steps[1:], strict=False)]

    def _group(
        self,
        target: Target,
        taken: Sequence[Contribution],
        weight_shape: tuple[int, ...] | None,
        entries: Sequence[Entry],
    ) -> Group:
        shape = taken[0].shape
        if weight_shape is not None:
            expected = list(weight_shape)
            if target.part:
                expected[target.part.axis] = target.part.length
            shape = tuple(expected)
        for contribution in taken:
            if _flat(contribution.shape) != _flat(shape):
                owner = entries[contribution.entry].file.label
                against = "the model" if weight_shape else f"`{entries[taken[0].entry].file.label}`"
                self._problems.append(
                    f"`{owner}` has {contribution.shape} on {target}, {against} has {tuple(shape)}"
                )
        return Group(target, shape, tuple(taken))


def _flat(shape: Sequence[int]) -> tuple[int, int]:
    return shape[0], prod(shape[1:])


def _covers(part: Part | None, cell: Part | None) -> bool:
    if part is None or cell is None:
        return part is None
    return part.start <= cell.start and cell.start + cell.length <= part.start + part.length


def _within(cell: Part | None, part: Part | None) -> Part | None:
    return cell if part is None or cell is None else replace(cell, start=cell.start - part.start)


def _natural(target: Target) -> tuple[object, ...]:
    """A sort key in which block 10 comes after block 9."""
    steps = tuple((0, int(step), "") if step.isdigit() else (1, 0, step) for step in target.weight.split("."))
    return steps, target.part.start if target.part else -1
