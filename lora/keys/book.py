"""A family's names, looked up both ways; rows of blocks stay folded, so that a family costs a millisecond."""

from collections.abc import Iterable, Iterator, Mapping

from ..target import Part, Route, Target
from .names import INDEX, Names, row_of


class Book(Mapping[str, Route]):
    """Every spelling of a family's modules that needs no rewriting, and where it leads: its `KeyMap`."""

    def __init__(self, names: Iterable[Names]) -> None:
        self._alone: dict[str, Route] = {}
        self._rows: dict[str, dict[range, Route]] = {}
        self._names: dict[tuple[str, Part | None], list[Names]] = {}
        for one in names:
            self._names.setdefault((one.target.weight, one.target.part), []).append(one)
            straight = Route(one.target)
            foreign = Route(one.target, swap_halves=True) if one.swapped else straight
            if one.target.part is None:
                self._add(one.target.weight, straight, one.blocks)
            for name in (one.comfyui, one.kohya):
                # ComfyUI's name may be diffusers' own.
                if name is not None and name != one.diffusers:
                    self._add(name, straight, one.blocks)
            for name in (one.diffusers, *one.others):
                if name is not None:
                    self._add(name, foreign, one.blocks)

    def _add(self, name: str, route: Route, blocks: range | None) -> None:
        if blocks is None:
            self._alone[name] = route
        else:
            self._rows.setdefault(name, {})[blocks] = route

    def find(self, name: str) -> Route | None:
        """Where a spelling leads, or None."""
        route = self._alone.get(name)
        if route is not None:
            return route
        row = row_of(name)
        if row is None:
            return None
        for blocks, route in self._rows.get(row.pattern, {}).items():
            if row.number in blocks:
                weight = route.target.weight.replace(INDEX, str(row.number))
                return Route(Target(weight, route.target.part), route.swap_halves)
        return None

    def names(self, target: Target) -> Names | None:
        """The names of a target of the family, or None if it has no such target."""
        for one in self._names.get((target.weight, target.part), ()):
            if one.blocks is None:
                return one
        row = row_of(target.weight)
        if row is None:
            return None
        for one in self._names.get((row.pattern, target.part), ()):
            if one.blocks is not None and row.number in one.blocks:
                return one.at(row.number)
        return None

    def parts(self, weight: str) -> Iterator[Part]:
        """The parts of a weight that have names."""
        row = row_of(weight)
        patterns = {weight, row.pattern if row else weight}
        return (part for pattern, part in self._names if part is not None and pattern in patterns)

    def depths(self) -> dict[str, int]:
        """By the beginning of a weight's name up to its index, how many blocks the family has there."""
        found: dict[str, int] = {}
        for one in self.rows():
            if one.blocks is not None:
                stem = one.target.weight.partition(INDEX)[0]
                found[stem] = max(found.get(stem, 0), one.blocks.stop)
        return found

    def rows(self) -> Iterator[Names]:
        """All names, rows as they are."""
        return (one for several in self._names.values() for one in several)

    def __getitem__(self, name: str) -> Route:
        route = self.find(name)
        if route is None:
            raise KeyError(name)
        return route

    def get(self, name: str, default: Route | None = None) -> Route | None:  # type: ignore[override]
        """Where a spelling leads, or `default`."""
        route = self.find(name)
        return default if route is None else route

    def __iter__(self) -> Iterator[str]:
        yield from self._alone
        for pattern, found in self._rows.items():
            for blocks in found:
                yield from (pattern.replace(INDEX, str(index)) for index in blocks)

    def __len__(self) -> int:
        return len(self._alone) + sum(len(blocks) for found in self._rows.values() for blocks in found)
