"""Entries, strengths, and the targets they share.

A stack is resolved once, from headers: every module of every file is led to a target, fused and split
spellings of one weight meet on the coarsest common partition, shapes are checked, and everything that does
not fit is said in one message before any work begins (`design.md` §1.2, §4).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod

from ..core.errors import StackError
from . import keys
from .factors import LowRank
from .file import LoraFile
from .formats import Module
from .keys import Family, KeyMap
from .target import Part, Route, Target

SHOWN = 4


@dataclass(frozen=True)
class Entry:
    """One LoRA with its strengths.

    Attributes:
        file: the opened LoRA.
        strength: for the model's targets; may be negative.
        clip_strength: for the text encoders' targets; None means as `strength`.
        preserve: keep this LoRA out of the blend and add it on top, exactly.
    """

    file: LoraFile
    strength: float = 1.0
    clip_strength: float | None = None
    preserve: bool = False

    def strength_on(self, target: Target) -> float:
        """The strength that applies to one target."""
        if target.is_clip and self.clip_strength is not None:
            return self.clip_strength
        return self.strength


@dataclass(frozen=True)
class Contribution:
    """What one entry brings to one target: a module's delta, or a part of it."""

    entry: int
    module: Module
    swap_halves: bool = False
    part: Part | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the delta it brings."""
        if self.part is None:
            return self.module.shape
        sizes = list(self.module.shape)
        sizes[self.part.axis] = self.part.length
        return tuple(sizes)


@dataclass(frozen=True)
class Group:
    """One target with all that the stack brings to it, in an order that does not depend on the stack's."""

    target: Target
    shape: tuple[int, ...]
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True)
class Model:
    """What a host knows of the model that the stack is for.

    Attributes:
        known: spellings of module names → routes.
        shapes: the shape of each base weight, by the name a target has.
    """

    known: KeyMap
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stack:
    """Entries and the groups of targets they share; made by `build_stack`.

    Attributes:
        entries: in the user's order, duplicates added up and entries without any strength left out.
        groups: model targets first, then text encoders, each by name.
        family: the family all entries agree on, or None.
        spellings: a name from the files for targets that no family names.
        unmatched: per entry, the modules that the model does not have.
        notes: what the user should know, in sentences.
    """

    entries: tuple[Entry, ...]
    groups: tuple[Group, ...]
    family: Family | None
    spellings: Mapping[Target, str]
    unmatched: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]

    def load(self, group: Group) -> list[LowRank]:
        """The deltas of one group, in factors, in the order of its contributions."""
        return [self._delta(contribution) for contribution in group.contributions]

    def _delta(self, contribution: Contribution) -> LowRank:
        delta = self.entries[contribution.entry].file.load(contribution.module)
        if contribution.swap_halves:
            delta = delta.halves_swapped()
        return delta if contribution.part is None else delta.part(contribution.part)


def build_stack(entries: Sequence[Entry], model: Model | None = None, partial: bool = False) -> Stack:
    """Resolve entries into groups of shared targets.

    Args:
        entries: at least one.
        model: what the host knows of the base model; None resolves by family, or by module name alone.
        partial: go on without the modules that are not read; otherwise they stop the merge.

    Raises:
        StackError: nothing is left to merge, or entries do not fit together, or modules cannot be read.
    """
    notes: list[str] = []
    kept = _without_idle(_added_up(entries, notes), notes)
    if not kept:
        raise StackError("The stack is empty: name at least one LoRA with a strength other than 0.")
    _refuse_unread(kept, partial, notes)
    family = _common_family(kept)
    table = _Table(family, model)
    for index, entry in enumerate(kept):
        table.add(index, entry)
    groups = table.groups(kept)
    unmatched = tuple(tuple(names) for names in table.unmatched)
    _report_unmatched(kept, unmatched, model, notes)
    if not groups:
        raise StackError(_nothing_fits(kept, family, model))
    return Stack(tuple(kept), groups, family, table.spellings, unmatched, tuple(notes))


def _added_up(entries: Iterable[Entry], notes: list[str]) -> list[Entry]:
    """Entries with one content become one, their strengths added; the fields say so to the user."""
    found: dict[tuple[str, bool], Entry] = {}
    times: dict[tuple[str, bool], int] = {}
    for entry in entries:
        for value in (entry.strength, entry.clip_strength):
            if value is not None and not isfinite(value):
                raise StackError(f"The strength of `{entry.file.label}` is {value}; it must be a number.")
        key = (entry.file.sha256, entry.preserve)
        times[key] = times.get(key, 0) + 1
        if key not in found:
            found[key] = entry
            continue
        first = found[key]
        clip = None
        if first.clip_strength is not None or entry.clip_strength is not None:
            clip = _clip(first) + _clip(entry)
        found[key] = replace(first, strength=first.strength + entry.strength, clip_strength=clip)
    for key, entry in found.items():
        if times[key] > 1:
            notes.append(
                f"`{entry.file.label}` stands {times[key]} times in the stack; its strengths are added to"
                f" {entry.strength:g} (CLIP {_clip(entry):g})."
            )
    return list(found.values())


def _clip(entry: Entry) -> float:
    return entry.strength if entry.clip_strength is None else entry.clip_strength


def _without_idle(entries: Iterable[Entry], notes: list[str]) -> list[Entry]:
    kept = []
    for entry in entries:
        if entry.strength == 0.0 and _clip(entry) == 0.0:
            notes.append(f"`{entry.file.label}` has strength 0 and is left out.")
        else:
            kept.append(entry)
    return kept


def _refuse_unread(entries: Sequence[Entry], partial: bool, notes: list[str]) -> None:
    sentences = []
    for entry in entries:
        unread = entry.file.unread
        if unread:
            total = len(unread) + len(entry.file.modules)
            first = unread[0]
            sentences.append(
                f"`{entry.file.label}`: {len(unread)} of {total} modules are not read; `{first.name}`"
                f" {first.text}"
            )
        odd = [account.tensor for account in entry.file.accounts if account.state == "unknown"]
        if odd:
            notes.append(
                f"`{entry.file.label}` has {len(odd)} tensors that nobody here knows, the first `{odd[0]}`;"
                f" they are"
                " left out."
            )
    if sentences and not partial:
        raise StackError(
            "A merge would lose part of what was asked. "
            + ". ".join(sentences)
            + ". Take those LoRAs out, or allow a partial merge (`--partial`)."
        )
    notes += (f"{sentence}; a partial merge was asked for." for sentence in sentences)


def _common_family(entries: Sequence[Entry]) -> Family | None:
    """The family that every entry may belong to; entries of unknown families go with any."""
    telling = [entry for entry in entries if entry.file.families]
    if not telling:
        return None
    common = [family.key for family in telling[0].file.families]
    for entry in telling[1:]:
        common = [key for key in common if key in {family.key for family in entry.file.families}]
    if common:
        released = keys.family(common[0])
        found = (one for entry in telling for one in entry.file.families if one.key == common[0])
        # A file of text encoders alone does not show the model's width; any other that differs is evidence.
        return next((one for one in found if one != released), released)
    sides: dict[str, list[str]] = {}
    for entry in telling:
        sides.setdefault(entry.file.families[0].title, []).append(f"`{entry.file.label}`")
    found = "; ".join(f"{title}: {', '.join(labels)}" for title, labels in sorted(sides.items()))
    raise StackError(
        f"The stack mixes LoRAs of {len(sides)} model families, which cannot be merged. {found}. Keep the"
        f" LoRAs of"
        " one family."
    )


class _Table:
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
        offline = keys.resolve(name, keys.key_map(self.family)) if self.family else None
        if self.model is not None:
            route = keys.resolve(name, self.model.known)
            if route is None and offline is not None:
                spelled = keys.spell(offline.target, "comfyui", self.family)
                known = keys.resolve(spelled, self.model.known) if spelled else None
                route = replace(known, swap_halves=offline.swap_halves) if known else None
            return route
        if offline is not None:
            return offline
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


def _report_unmatched(
    entries: Sequence[Entry], unmatched: Sequence[Sequence[str]], model: Model | None, notes: list[str]
) -> None:
    for entry, names in zip(entries, unmatched, strict=True):
        if not names or model is None:
            continue
        share = len(names) / len(entry.file.modules)
        notes.append(
            f"`{entry.file.label}`: {len(names)} of {len(entry.file.modules)} modules ({share:.0%}) have no"
            f" place in"
            f" this model and are left out, the first `{names[0]}`."
        )


def _nothing_fits(entries: Sequence[Entry], family: Family | None, model: Model | None) -> str:
    first = next((name for entry in entries for name in entry.file.modules), "none")
    found = f"LoRAs for {family.title}" if family else "modules such as"
    where = "the model has none of their targets" if model else "no target is left"
    return (
        f"Nothing can be merged: the stack holds {found} (`{first}`), and {where}. Load the model these"
        f" LoRAs were"
        " trained for."
    )
