"""Remembered measurements: of each LoRA by itself, and of each two; strengths come later.

A number of two LoRAs depends on nothing but these two, so a stack in another order, with other strengths, or with one
LoRA more or less, finds what it has in common with those before it. Keys hold the contents, and what of them is led
where.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..analysis.measure import measure
from ..analysis.similarity import Measured
from ..cache.store import Store
from ..core.progress import Progress, silent
from ..lora.entries import Group
from ..lora.stack import Stack
from ..merging.recipe import Recipe
from .identity import cleaned, contribution_key, group_key, is_plain

LORA, PAIR = "lora_analysis", "pair_analysis"
# How many numbers a record has for a target: of one LoRA or of two, plain or deep.
_HEIGHTS = {(1, False): 1, (1, True): 1, (2, False): 2, (2, True): 4}

_Members: TypeAlias = tuple[int, ...]


class Analysis:
    """Measures stacks, and remembers what it measured.

    Attributes:
        store: where.
        base: the part of every key that stands for the program and the machine.
    """

    def __init__(self, store: Store, base: dict[str, Any]) -> None:
        self.store = store
        self.base = base

    def measure(
        self, stack: Stack, recipe: Recipe, *, is_deep: bool = False, progress: Progress = silent
    ) -> list[Measured]:
        """What `analysis.measure` gives, to the bit.

        Raises:
            FileError: a file holds values that are not finite.
        """
        records = _Records(self, stack, recipe, is_deep)
        missing = records.missing()
        wanted = [group for at, group in enumerate(stack.groups) if at in missing]
        made: list[Measured] = []
        if wanted:
            made = measure(replace(stack, groups=tuple(wanted)), is_deep=is_deep, progress=progress)
        else:
            progress("analyse", len(stack.groups), len(stack.groups))
        fresh = dict(zip(sorted(missing), made, strict=True))
        found = [
            fresh[at] if at in fresh else records.measured(at, group) for at, group in enumerate(stack.groups)
        ]
        records.keep(found)
        return found


class _Records:
    """The records of one stack: which targets each covers, and their numbers where they are known."""

    def __init__(self, analysis: Analysis, stack: Stack, recipe: Recipe, is_deep: bool) -> None:
        self._analysis, self._stack, self._recipe, self._is_deep = analysis, stack, recipe, is_deep
        self._covered: dict[_Members, list[int]] = {}
        self._loose: set[int] = set()
        for at, group in enumerate(stack.groups):
            members = [one.entry for one in group.contributions]
            if len(set(members)) < len(members) or not all(
                is_plain(stack, one) for one in group.contributions
            ):
                self._loose.add(at)
                continue
            for owners in ((member,) for member in members):
                self._covered.setdefault(owners, []).append(at)
            for one, other in combinations(members, 2):
                self._covered.setdefault((one, other), []).append(at)
        depths = (False, True) if is_deep else (False,)
        self._keys = {
            (members, deep): self._key(members, deep) for members in self._covered for deep in depths
        }
        self._values: dict[tuple[_Members, bool], dict[int, list[float]]] = {}
        for (members, deep), key in self._keys.items():
            values = self._read(members, deep, key)
            if values is not None:
                self._values[members, deep] = values

    def missing(self) -> set[int]:
        """The targets of which something is not known."""
        unknown = [self._covered[members] for members, deep in self._keys.keys() - self._values.keys()]
        return self._loose.union(*unknown)

    def measured(self, at: int, group: Group) -> Measured:
        """What is known of a target, put together."""
        members = tuple(one.entry for one in group.contributions)
        count = len(members)
        gram, conflict, overlap = torch.zeros(3, count, count, dtype=torch.float64)
        ranks = []
        for place, member in enumerate(members):
            gram[place, place] = self._values[(member,), False][at][0]
            if self._is_deep:
                ranks.append(self._values[(member,), True][at][0])
        for one, other in combinations(range(count), 2):
            pair = members[one], members[other]
            gram[one, other], conflict[one, other] = self._values[pair, False][at]
            gram[other, one], conflict[other, one] = gram[one, other], conflict[one, other]
            if self._is_deep:
                there, back, of_one, of_other = self._values[pair, True][at]
                overlap[one, other], overlap[other, one] = there, back
                overlap[one, one], overlap[other, other] = of_one, of_other
        has_pairs = count > 1
        return Measured(
            group.target,
            members,
            gram,
            prod(group.shape),
            conflict if has_pairs else None,
            overlap if has_pairs and self._is_deep else None,
            tuple(ranks),
        )

    def keep(self, measured: Sequence[Measured]) -> None:
        """Remember what was not known."""
        for (members, deep), key in self._keys.items():
            if (members, deep) in self._values:
                continue
            rows = [_row(measured[at], members, deep) for at in self._covered[members]]
            columns = torch.tensor(rows, dtype=torch.float64).T.contiguous()
            self._analysis.store.put_tensors(_kind(members), key, {}, {"numbers": columns})

    def _key(self, members: _Members, deep: bool) -> dict[str, Any]:
        targets = []
        for at in self._covered[members]:
            group = self._stack.groups[at]
            ours = [contribution_key(one) for one in group.contributions if one.entry in members]
            targets.append([group_key(group), ours])
        entries = [self._stack.entries[member] for member in members]
        return {
            **self._analysis.base,
            "contents": [entry.file.sha256 for entry in entries],
            "cleaned": [cleaned(self._stack, entry, self._recipe) for entry in entries],
            "deep": deep,
            "targets": targets,
        }

    def _read(self, members: _Members, deep: bool, key: dict[str, Any]) -> dict[int, list[float]] | None:
        found = self._analysis.store.get_tensors(_kind(members), key)
        if found is None:
            return None
        numbers: Tensor | None = found[1].get("numbers")
        covered = self._covered[members]
        if numbers is None or numbers.dtype != torch.float64:
            return None
        if tuple(numbers.shape) != (_HEIGHTS[len(members), deep], len(covered)):
            return None
        return dict(zip(covered, numbers.T.tolist(), strict=True))


def _kind(members: _Members) -> str:
    return LORA if len(members) == 1 else PAIR


def _row(one: Measured, members: _Members, deep: bool) -> tuple[float, ...]:
    """The numbers of a record on one target."""
    first = one.entries.index(members[0])
    if len(members) == 1:
        return (one.effective_rank[first] if deep else float(one.gram[first, first]),)
    second = one.entries.index(members[1])
    assert one.conflict is not None
    if not deep:
        return float(one.gram[first, second]), float(one.conflict[first, second])
    assert one.overlap is not None
    # A LoRA's overlap with itself is measured only where there is another.
    chosen = ((first, second), (second, first), (first, first), (second, second))
    return tuple(float(one.overlap[pair]) for pair in chosen)
