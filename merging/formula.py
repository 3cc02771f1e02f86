"""Merge formulas: `(1+2):0.6 + 3:0.4` merges 1 and 2 first, then the result at 0.6 with 3 at 0.4.

    expression = atom ('+' atom)*        atom = (number | '(' expression ')') [':' weight]

Numbers count the stack from 1. A weight multiplies what it stands at: a LoRA's strengths, model and CLIP alike, or an
inner result (`spec/engine.md` §12, where a weight replaced the model's strength and left CLIP's).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ..core.errors import RecipeError

DEEPEST = 20
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?|\.\d+)|([+():]))", re.ASCII)


@dataclass(frozen=True)
class Leaf:
    """A LoRA by its place in the stack, from 0, and the factor on its strengths."""

    place: int
    weight: float = 1.0


@dataclass(frozen=True)
class Group:
    """What is merged by itself, and the factor on the result."""

    members: tuple["Node", ...]
    weight: float = 1.0

    @property
    def label(self) -> str:
        """The group as its places: `(1+2)`."""
        return f"({'+'.join(_label(member) for member in self.members)})"


Node: TypeAlias = Leaf | Group


def _label(node: Node) -> str:
    name = node.label if isinstance(node, Group) else str(node.place + 1)
    return name if node.weight == 1.0 else f"{name}:{node.weight:.12g}"


def renumbered(group: Group, numbers: Mapping[int, int]) -> str:
    """A formula's text for another stack.

    Args:
        group: the tree.
        numbers: the place of each of its LoRAs, from 0, in the other stack.

    Raises:
        KeyError: a LoRA has no place there.
    """

    def moved(node: Node) -> Node:
        if isinstance(node, Leaf):
            return Leaf(numbers[node.place], node.weight)
        return Group(tuple(map(moved, node.members)), node.weight)

    return "+".join(_label(moved(member)) for member in group.members)


def parse(text: str, count: int) -> Group:
    """The tree of a formula.

    Args:
        text: the formula.
        count: how many LoRAs the stack has.

    Raises:
        RecipeError: it is no formula, or names a LoRA that the stack does not have.
    """
    reader = _Reader(text, count)
    group = reader.expression(0)
    if reader.word:
        raise reader.refused(f"`{reader.word}` stands where `+` or the end should")
    return group


def places_of(node: Node) -> set[int]:
    """The LoRAs that a tree names."""
    if isinstance(node, Leaf):
        return {node.place}
    return set().union(*(places_of(member) for member in node.members))


class _Reader:
    def __init__(self, text: str, count: int) -> None:
        self._text, self._count, self._at = text, count, 0
        self.word = ""
        self._next()

    def _next(self) -> str:
        taken = self.word
        found = _TOKEN.match(self._text, self._at)
        if found is None and self._text[self._at :].strip():
            raise self.refused(f"`{self._text[self._at :].strip()[0]}` is no part of a formula")
        self.word = found[0].strip() if found else ""
        self._at = found.end() if found else len(self._text)
        return taken

    def refused(self, what: str) -> RecipeError:
        return RecipeError(
            f"The formula `{self._text[:200]}` cannot be read: {what}. Write one such as `(1+2):0.6 + 3:0.4`, where the"
            " numbers count the stack from 1."
        )

    def expression(self, depth: int) -> Group:
        if depth > DEEPEST:
            raise self.refused(f"its parentheses are more than {DEEPEST} deep")
        members = [self._atom(depth)]
        while self.word == "+":
            self._next()
            members.append(self._atom(depth))
        return Group(tuple(members))

    def _atom(self, depth: int) -> Node:
        if self.word == "(":
            self._next()
            inner = self.expression(depth + 1)
            if self.word != ")":
                raise self.refused("a `)` is missing")
            self._next()
            weight = self._weight()
            if len(inner.members) == 1:
                return _times(inner.members[0], weight)
            return Group(inner.members, weight)
        if not self.word.isdigit():
            found = f"`{self.word}` stands" if self.word else "it ends"
            raise self.refused(f"{found} where a LoRA's number or `(` should")
        place = int(self._next()[:9]) - 1
        if not 0 <= place < self._count:
            raise self.refused(f"there is no LoRA {place + 1}; the stack has {self._count}")
        return Leaf(place, self._weight())

    def _weight(self) -> float:
        if self.word != ":":
            return 1.0
        self._next()
        if not self.word or self.word in "+():":
            raise self.refused("a weight is missing behind `:`")
        return float(self._next()[:30])


def _times(node: Node, weight: float) -> Node:
    if isinstance(node, Leaf):
        return Leaf(node.place, node.weight * weight)
    return Group(node.members, node.weight * weight)
