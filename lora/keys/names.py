"""What a model family declares: its name, the names of its targets, and how a file of it looks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..target import Part, Route, Target

KeyMap: TypeAlias = Mapping[str, Route]

MODEL = "diffusion_model."


@dataclass(frozen=True)
class Family:
    """A model family, with the words by which trainers note it in a file's header.

    `hidden` is the width of the transformer where parts of fused weights are multiples of it, else None. In
    `FAMILIES` it is that of the released model; `detect` puts in what the file shows.
    """

    key: str
    title: str
    ss_base_model_version: str
    modelspec: str
    hidden: int | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one target: one a naming, None where that naming has none; `others` are read, not written.

    With `swapped`, `diffusers` and `others` name a weight whose two row halves stand in the other order.
    """

    target: Target
    comfyui: str
    kohya: str | None = None
    diffusers: str | None = None
    others: tuple[str, ...] = ()
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a file, with its known target and its factors' shapes: up `(o, r)`, down `(r, i)`."""

    target: Target
    up: tuple[int, ...]
    down: tuple[int, ...]

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
    """A family a file may belong to; `is_likely` if a shape says so, not merely nothing against it."""

    family: Family
    is_likely: bool


def no_kernel(weight: str) -> tuple[int, ...]:
    """The `kernel` of an architecture without convolutions."""
    return ()


def not_fused(weight: str, rows: int) -> tuple[Part, ...] | None:
    """The `parts` of an architecture without fused weights: none."""
    return None


@dataclass(frozen=True)
class Architecture:
    """One family's file, as the ordered list in `table.py` holds it.

    `names` lists every target of the family once; `judge` says whether modules, all of them targets of this
    family by name, also fit it by shape; `parts` splits the `rows` of a fused weight; `kernel` is that of a
    convolution's weight, empty for others.
    """

    family: Family
    names: Callable[[Family], Iterator[Names]]
    judge: Callable[[Sequence[Module]], Candidate | None]
    parts: Callable[[str, int], tuple[Part, ...] | None] = not_fused
    kernel: Callable[[str], tuple[int, ...]] = no_kernel


def flat(path: str) -> str:
    """A dotted path as kohya's trainers write it."""
    return path.replace(".", "_")
