"""What a model family declares: its name, the names of its targets, and how a file of it looks."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from ..target import Part, Route, Target

KeyMap: TypeAlias = Mapping[str, Route]

MODEL = "diffusion_model."
INDEX = "#"  # stands for the index of a block in a name that is a row of names

# The first number that stands alone between dots or underscores; not that of `text_encoder_2.`.
_FIRST_NUMBER = re.compile(r"(?:\.|(?<!text_encoder)_)(0|[1-9]\d{0,3})(?=[._]|$)")


class Row(NamedTuple):
    """A name taken apart: `pattern` has `INDEX` in the place of its first number."""

    pattern: str
    number: int


def row_of(name: str) -> Row | None:
    """The row a name belongs to by its first number, or None if it has none."""
    found = _FIRST_NUMBER.search(name)
    if found is None:
        return None
    return Row(f"{name[: found.start(1)]}{INDEX}{name[found.end(1) :]}", int(found.group(1)))


@dataclass(frozen=True)
class Family:
    """A model family, with the words by which trainers note it in a file's header.

    `hidden` is the width of the transformer where parts of fused weights are multiples of it, else None;
    `kv_width` that of k and v where they have fewer heads than q. In `FAMILIES` they are those of the released
    model; `detect` puts in what the file shows.
    """

    key: str
    title: str
    ss_base_model_version: str
    modelspec: str
    hidden: int | None = None
    kv_width: int | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one target: one a naming, None where that naming has none; `others` are read, not written.

    With `swapped`, `diffusers` and `others` name a weight whose two row halves stand in the other order. With
    `blocks` it is a row of targets: `INDEX` in every name stands for one index after the other.
    """

    target: Target
    comfyui: str | None
    kohya: str | None = None
    diffusers: str | None = None
    others: tuple[str, ...] = ()
    swapped: bool = False
    blocks: range | None = None

    def at(self, index: int) -> "Names":
        """The names of the target with this index in the row."""
        number = str(index)

        def put(name: str | None) -> str | None:
            return name and name.replace(INDEX, number)

        return replace(
            self,
            target=replace(self.target, weight=self.target.weight.replace(INDEX, number)),
            comfyui=put(self.comfyui),
            kohya=put(self.kohya),
            diffusers=put(self.diffusers),
            others=tuple(name.replace(INDEX, number) for name in self.others),
            blocks=None,
        )

    def each(self) -> Iterator["Names"]:
        """The names of every target of the row; itself if it is none."""
        return iter((self,)) if self.blocks is None else map(self.at, self.blocks)


@dataclass(frozen=True, slots=True)
class Module:
    """Modules of a file with a known target and their factors' shapes: up `(o, r)`, down `(r, i)`.

    Those of one row with the same shapes are one, told by one of their targets; `count` says how many.
    """

    target: Target
    up: tuple[int, ...]
    down: tuple[int, ...]
    count: int = 1

    @property
    def outputs(self) -> int:
        """The rows `o` of the delta."""
        return self.up[0] if self.up else 0

    @property
    def inputs(self) -> int:
        """The columns `i` of the delta, without a convolution's kernel."""
        return self.down[1] if len(self.down) > 1 else 0


@dataclass(frozen=True)
class Candidate:
    """A family a file may belong to.

    `is_likely` if a shape says so, not merely nothing against it; `is_released` if the shapes are those of the
    released model, not those of a smaller one of the same kind; `preference` orders equals, high first: the share of
    modules whose shapes are the released ones.
    """

    family: Family
    is_likely: bool
    is_released: bool = False
    preference: float = 0.0


def no_kernel(weight: str) -> tuple[int, ...]:
    """The `kernel` of an architecture without convolutions."""
    return ()


def not_fused(weight: str, rows: int, family: Family) -> tuple[Part, ...] | None:
    """The `parts` of an architecture without fused weights: none."""
    return None


def any_stem() -> str:
    """The `stems` of an architecture that does not tell them."""
    return ""


@dataclass(frozen=True)
class Architecture:
    """One family's file, as the ordered list in `table.py` holds it.

    `names` lists every target of the family once, alone or in a row; `judge` says whether modules, all of them
    targets of this family by name, also fit it by shape; `parts` splits the `rows` of a fused weight; `kernel` is
    that of a convolution's weight, empty for others. `stems` is a text with the beginnings of all names of this
    family's blocks in it, flattened and up to their number: a file with others need not be looked up in it. It is
    empty if it is not told.
    """

    family: Family
    names: Callable[[Family], Iterator[Names]]
    judge: Callable[[Sequence[Module]], Candidate | None]
    parts: Callable[[str, int, Family], tuple[Part, ...] | None] = not_fused
    stems: Callable[[], str] = any_stem
    kernel: Callable[[str], tuple[int, ...]] = no_kernel


def flat(path: str) -> str:
    """A dotted path as kohya's trainers write it."""
    return path.replace(".", "_")
