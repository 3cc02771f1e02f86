"""From modules to groups: where every name leads, and the coarsest common partition of each weight."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, prod
from typing import TypeAlias

from ..core.errors import StackError
from . import keys
from .entries import Contribution, Entry, Group, Model, no_base
from .factors import distance
from .file import LoraFile
from .formats import Module
from .headers import brief
from .keys import Family
from .target import TEXT_ENCODERS, Part, Route, Target

SHOWN = 4
LONGEST_NUMBER = 18
ALIKE = 0.02  # of the norm: what bfloat16 and a folded alpha may differ from float32

Placed: TypeAlias = tuple[Part | None, Contribution]
"""What an entry brings, with the part of the weight that it is for."""


def led(name: str, family: Family | None, model: Model | None) -> Route | None:
    """The route of a name: by the model's own map, else by the family's if the model has what it gives."""
    offline = keys.resolve(name, keys.key_map(family)) if family else None
    if model is None:
        return offline
    route = keys.resolve(name, model.known)
    if route is not None and _is_sound(route.target, family, model):
        return route
    if offline is None:
        return None
    spelled = keys.spell(offline.target, "comfyui", family)
    known = keys.resolve(spelled, model.known) if spelled else None
    if known is None and offline.target.part is not None:
        # ComfyUI has no name for the part, or a wrong one, and yet the weight.
        whole = keys.resolve(offline.target.weight, model.known)
        if whole is not None and whole.target.part is None and _is_within(offline.target, model):
            known = Route(Target(whole.target.weight, offline.target.part))
    return replace(known, swap_halves=offline.swap_halves) if known else None


def _is_sound(target: Target, family: Family | None, model: Model) -> bool:
    """Whether a part that the model's map names is one: ComfyUI takes k and v to be as wide as q."""
    if target.part is None:
        return True
    return (family is None or family.kv_width is None) and _is_within(target, model)


def _is_within(target: Target, model: Model) -> bool:
    part, shape = target.part, model.shapes.get(target.weight)
    return part is None or not shape or part.start + part.length <= shape[part.axis]


class Table:
    """Contributions by weight, before partitions are settled."""

    def __init__(self, family: Family | None, model: Model | None) -> None:
        self.family = family
        self.model = model
        self.has_base = model is not None and model.base is not no_base
        self.spellings: dict[Target, str] = {}
        self.unmatched: list[list[str]] = []
        self.notes: list[str] = []
        self._weights: dict[str, list[Placed]] = {}
        self._problems: list[str] = []
        self._torn: list[str] = []

    def add(self, index: int, entry: Entry) -> None:
        """Lead every module of one entry to its target."""
        lost: list[str] = []
        own: dict[str, list[Placed]] = {}
        for name, module in entry.file.modules.items():
            if module.base_reason and not self.has_base:
                continue  # said by whoever asked for a partial merge
            route = self._route(module)
            shaped = self._shaped(module, route.target) if route else None
            if route is None or shaped is None:
                lost.append(name)
                continue
            contribution = Contribution(index, shaped, route.target, route.swap_halves)
            own.setdefault(route.target.weight, []).append((route.target.part, contribution))
        self.unmatched.append(lost)
        doubles: list[tuple[str, str]] = []
        for weight, found in own.items():
            kept = found if len(found) == 1 else self._once(entry.file, weight, found, doubles)
            self._weights.setdefault(weight, []).extend(kept)
        if doubles:
            first, second = doubles[0]
            self.notes.append(
                f"`{entry.file.label}` holds {len(doubles)} modules under two names, such as `{first}` and"
                f" `{second}`; each counts once."
            )

    def _route(self, module: Module) -> Route | None:
        if module.home is not None:
            if module.name != str(module.home):
                self._call(module.home, module.name)
            return Route(module.home)
        route = led(module.name, self.family, self.model)
        if route is None and self.model is None:
            route = Route(Target(keys.loose_name(module.name)))
            self._call(route.target, module.name)
        elif route and route.target.part and not keys.spell(route.target, "comfyui", self.family):
            self._call(route.target, module.name)
        if route is None or module.parameter == "weight":
            return route
        target = replace(route.target, weight=f"{route.target.weight}.{module.parameter}")
        if self.model is not None and target.weight not in self.model.shapes:
            return None
        if route.target in self.spellings:
            self.spellings[target] = f"{self.spellings[route.target]}.{module.parameter}"
        return replace(route, target=target)

    def _call(self, target: Target, name: str) -> None:
        """Of several spellings take the one that most readers know, whatever the order of the stack."""
        self.spellings[target] = min(name, self.spellings.get(target, name), key=_strangeness)

    def _shaped(self, module: Module, target: Target) -> Module | None:
        """The module with the shape its delta has in the model, where its own tensors do not tell it."""
        if module.shape is not None:
            return module
        sizes = list(self._base_shape(target.weight))
        if not sizes:
            return None
        if len(sizes) < 2 or 0 in sizes:
            self._problems.append(
                f"`{brief(module.name)}` comes with {module.base_reason}, and {target} has {tuple(sizes)}, which is"
                " no matrix"
            )
            return None
        if target.part is not None:
            sizes[target.part.axis] = target.part.length
        shaped = replace(module, shape=tuple(sizes))
        if module.outputs not in (0, sizes[0]) or module.inputs not in (0, prod(sizes[1:])):
            self._problems.append(
                f"`{brief(module.name)}` is for {module.outputs or 'any'} outputs and"
                f" {module.inputs or 'any'} inputs, and {target} has {shaped.shape}"
            )
        return shaped

    def _base_shape(self, weight: str) -> tuple[int, ...]:
        if self.model is None:
            return ()
        if weight in self.model.shapes:
            return self.model.shapes[weight]
        base = self.model.base(weight)  # a packed weight does not show its shape
        return () if base is None else tuple(base.shape)

    def _once(
        self, file: LoraFile, weight: str, found: Sequence[Placed], doubles: list[tuple[str, str]]
    ) -> list[Placed]:
        """What a file brings to one weight, each row of it once: two namings of one LoRA may stand in it."""
        kept: list[Placed] = []
        for part, contribution in sorted(found, key=lambda placed: -placed[0].length if placed[0] else -inf):
            wider = next((placed for placed in kept if _covers(placed[0], part)), None)
            if wider is None:
                kept.append((part, contribution))
                continue
            names = wider[1].module.name, contribution.module.name
            if _is_same(file, wider, (part, contribution), self.model):
                doubles.append(names)
            else:
                shown = " and ".join(f"`{brief(name)}`" for name in names)
                self._torn.append(f"{shown} of `{file.label}` are {Target(weight, part)}")
        return kept

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
                    key=lambda index: _identity(entries[index]),
                )
            )
        }
        groups: list[Group] = []
        for weight, found in self._weights.items():
            found.sort(key=lambda pair: rank[pair[1].entry])
            groups += self._partitioned(weight, found, entries)
        if self._problems:
            raise StackError(
                f"The stack does not fit together: {_shown(self._problems)}. These LoRAs are for different models,"
                " or damaged; keep those of one model."
            )
        if self._torn:
            raise StackError(
                f"A file gives one target two names with different values: {_shown(self._torn)}. It holds two LoRAs,"
                " of which ComfyUI would apply a mixture. Take the modules of one naming out of it, or leave it out"
                " of the stack."
            )
        order = sorted(groups, key=lambda group: (group.target.is_clip, _natural(group.target)))
        return tuple(order)

    def _partitioned(self, weight: str, found: Sequence[Placed], entries: Sequence[Entry]) -> list[Group]:
        shape = self.model.shapes.get(weight) if self.model else None
        if self._misfits(weight, found, shape, entries):
            return []
        cells = self._cells(weight, found)
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

    def _misfits(
        self,
        weight: str,
        found: Sequence[Placed],
        weight_shape: tuple[int, ...] | None,
        entries: Sequence[Entry],
    ) -> bool:
        """Whether parts are not as high as their place, or wholes not as high as what they are split into."""
        parts = [part for part, _ in found if part]
        if not parts:
            return False
        axis = parts[0].axis
        whole = weight_shape[axis] if weight_shape else 0
        whole = whole or (keys.rows(weight, self.family) if self.family and axis == 0 else 0)
        whole = whole or max(
            part.start + part.length if part else contribution.shape[axis] for part, contribution in found
        )
        count = len(self._problems)
        for part, contribution in found:
            size, shape = (part.length if part else whole), contribution.shape
            if shape[part.axis if part else axis] != size:
                self._problems.append(
                    f"`{entries[contribution.entry].file.label}` has {shape} on {Target(weight, part)}, which"
                    f" has {size} {'columns' if axis else 'rows'}"
                )
        return len(self._problems) > count

    def _cells(self, weight: str, found: Sequence[Placed]) -> list[Part | None]:
        given = {part for part, _ in found}
        rows = next((contribution.shape[0] for part, contribution in found if part is None), None)
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
        # A flat convolution does not show its kernel: another file does, or the family knows it.
        shape = max((contribution.shape for contribution in taken), key=len)
        if self.family and target.part is None:
            shape = keys.unflattened(target.weight, shape, self.family)
        if weight_shape is not None:
            expected = list(weight_shape)
            if target.part:
                expected[target.part.axis] = target.part.length
            shape = tuple(expected)
        if any(contribution.module.is_wider for contribution in taken):
            widened = _widened(target, shape, taken, is_known=weight_shape is not None)
            if widened is not None:
                return widened
        for contribution in taken:
            if _flat(contribution.shape) != _flat(shape):
                owner = entries[contribution.entry].file.label
                against = "the model" if weight_shape else f"`{entries[taken[0].entry].file.label}`"
                self._problems.append(
                    f"`{owner}` has {contribution.shape} on {target}, {against} has {tuple(shape)}"
                )
        return Group(target, shape, tuple(taken))


def _identity(entry: Entry) -> tuple[str, bool, str, str]:
    return entry.file.sha256, entry.preserve, entry.conflict_mode, entry.key_filter


def _widened(
    target: Target, shape: tuple[int, ...], taken: Sequence[Contribution], *, is_known: bool
) -> Group | None:
    """The group of a weight that is filled up with zeros, all that is narrower with it; None if they do not fit.

    Args:
        target: the weight.
        shape: its own, or that of the first to change it.
        taken: what changes it, of which at least one fills it up.
        is_known: whether `shape` is the weight's own.
    """
    wide = {one.shape for one in taken if one.module.is_wider}
    narrow = {one.shape for one in taken} - wide | ({shape} if is_known else set())
    if target.part is not None or len(wide) > 1 or len(narrow - wide) > 1:
        return None
    (made,) = wide
    if any(len(one) != 2 or one[0] > made[0] or one[1] > made[1] for one in (made, *narrow)):
        return None
    filled = (one if one.shape == made else replace(one, wider=made) for one in taken)
    return Group(target, made, tuple(filled), is_wider=True)


def _flat(shape: Sequence[int]) -> tuple[int, int]:
    return (shape[0] if shape else 1), prod(shape[1:])


def _shown(problems: Sequence[str]) -> str:
    more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return "; ".join(problems[:SHOWN]) + more


def _strangeness(name: str) -> tuple[bool, bool, str]:
    return "." not in name, not name.startswith(("diffusion_model.", TEXT_ENCODERS)), name


def _is_same(file: LoraFile, wide: Placed, narrow: Placed, model: Model | None) -> bool:
    """Whether the rows that both bring are the same, but for the rounding of their dtypes."""
    other = narrow[1].load(file, model)
    one = wide[1].load(file, model)
    part = _within(narrow[0], wide[0]) if narrow[0] != wide[0] else None
    if part is not None:
        if part.start + part.length > one.shape[part.axis]:
            return False
        one = one.part(part)
    if _flat(one.shape) != _flat(other.shape):
        return False
    off, size = distance(one, other)
    return off <= ALIKE * size


def _covers(part: Part | None, cell: Part | None) -> bool:
    if part is None or cell is None:
        return part is None
    return (
        part.axis == cell.axis
        and part.start <= cell.start
        and cell.start + cell.length <= part.start + part.length
    )


def _within(cell: Part | None, part: Part | None) -> Part | None:
    return cell if part is None or cell is None else replace(cell, start=cell.start - part.start)


def _natural(target: Target) -> tuple[object, ...]:
    """A sort key in which block 10 comes after block 9."""
    steps = tuple(_ordered(step) for step in target.weight.split("."))
    return steps, target.part.start if target.part else -1


def _ordered(step: str) -> tuple[int, int, str]:
    # Python reads no number of thousands of digits, nor a raised 2, which is a digit too.
    is_number = step.isdecimal() and len(step) <= LONGEST_NUMBER
    return (0, int(step), "") if is_number else (1, 0, step)
