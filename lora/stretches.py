"""The rows of blocks that a file changes, and which blocks of them it leaves out."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from . import keys
from .keys.names import INDEX, row_of
from .target import TEXT_ENCODERS, Target

LEAST = 2  # fewer blocks than this are no row
SHOWN = 6


@dataclass(frozen=True)
class Stretch:
    """A row of blocks, such as `double_blocks`.

    Attributes:
        name: what stands before the number, with the encoder in front where that is not the model.
        depth: how many like blocks the family's model has there; 0 where nobody knows, or where they differ.
        counts: block → modules of the file in it, ascending.
    """

    name: str
    depth: int
    counts: dict[int, int]

    @property
    def missing(self) -> tuple[int, ...]:
        """The blocks that the file leaves out, where they are known to be alike."""
        return tuple(block for block in range(self.depth) if block not in self.counts)

    def text(self) -> str:
        """How many blocks it changes, and which it leaves out, in words."""
        if not self.depth:
            return f"{self.name} {_listed(tuple(self.counts))}"
        notes = [f"{_listed(self.missing)} missing"] if self.missing else []
        usual = Counter(self.counts.values()).most_common(1)[0][0]
        if odd := [block for block, count in self.counts.items() if count != usual]:
            notes.append(f"{usual} module{'s' * (usual > 1)} in most, another number in {_listed(odd)}")
        words = f"{self.name} {len(self.counts)} of {self.depth}"
        return f"{words} ({'; '.join(notes)})" if notes else words


def stretches(targets: Iterable[Target], family: keys.Family | None) -> tuple[Stretch, ...]:
    """The rows of blocks that targets lie in, in the file's order.

    Args:
        targets: one a module.
        family: tells how many blocks there are. Those of UNets differ, so that none of them is missed.
    """
    found: dict[str, Counter[int]] = {}
    for target in targets:
        if (row := row_of(target.weight)) is not None:
            found.setdefault(row.pattern.partition(INDEX)[0], Counter())[row.number] += 1
    depths = keys.key_map(family).depths() if family else {}
    return tuple(
        Stretch(_name(stem), depths.get(stem, 0), dict(sorted(counts.items())))
        for stem, counts in found.items()
        if max(len(counts), depths.get(stem, 0)) >= LEAST
    )


def _name(stem: str) -> str:
    bare = stem.removeprefix("diffusion_model.").strip("._")
    if bare.startswith(TEXT_ENCODERS):
        encoder, _, path = bare.removeprefix(TEXT_ENCODERS).partition(".")
        return f"{encoder} {path.rpartition('.')[2]}"
    return bare or "blocks"


def _listed(numbers: Sequence[int]) -> str:
    """`3, 7, 9–12`; of many stretches the first."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs[:SHOWN]]
    return ", ".join(shown) + (f" and {sum(map(len, runs[SHOWN:]))} more" if len(runs) > SHOWN else "")
