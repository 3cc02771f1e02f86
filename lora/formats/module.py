"""A module as its header describes it: names, shapes, dtypes; no values."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from ...core.tensorfile import TensorInfo
from ..target import Target

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Module:
    """The tensors of one file that change one parameter of one module.

    Attributes:
        name: the module's name in the file, without a role's suffix.
        format: the format that recognised it.
        roles: role → tensor, of those that are used.
        rank: the inner size; the smaller side where a delta has none.
        shape: of the delta, `(o, *rest)`; None where only the base weight tells it.
        parameter: `weight` or `bias`.
        base_reason: what its effect depends on the base weight for, such as `DoRA magnitudes`; empty if it
            does not.
        outputs: the rows of the delta where `shape` is None, 0 if only the base tells them.
        inputs: the columns of the delta where `shape` is None, 0 if only the base tells them.
        note: what the user should know of how it is read, in words that begin a sentence; empty for nothing.
        gain: a factor on its scale, from a header that is to be honoured.
        home: where it leads, for what no file named; None goes by the name.
        is_wider: whether the base weight, where it is smaller than the delta, is to be filled up with zeros first.
    """

    name: str
    format: str
    roles: Mapping[str, TensorInfo]
    rank: int
    shape: Shape | None
    parameter: str = "weight"
    base_reason: str = ""
    outputs: int = 0
    inputs: int = 0
    note: str = ""
    gain: float = 1.0
    home: Target | None = None
    is_wider: bool = False

    @property
    def key(self) -> str:
        """The name, with `.bias` for what changes a bias: unique in a file."""
        return self.name if self.parameter == "weight" else f"{self.name}.{self.parameter}"

    @property
    def dtype(self) -> str:
        """The storage dtype of its widest factor, as the header spells it."""
        factors = [info.dtype for info in self.roles.values() if prod(info.shape) > 1]
        factors = factors or [info.dtype for info in self.roles.values()]
        return max(factors, key=lambda dtype: (_WIDTH.get(dtype, 0), dtype))

    @property
    def widths(self) -> tuple[Shape, Shape]:
        """The shapes `(o, r)` and `(r, *rest)` of an up and a down of its size; an axis nobody knows is 0."""
        shape = self.shape or (self.outputs, self.inputs)
        return (shape[0], self.rank), (self.rank, *(shape[1:] or (0,)))


_WIDTH = {"F64": 4, "F32": 4, "F16": 3, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}


@dataclass(frozen=True)
class Problem:
    """Why a module's tensors cannot be read: `text` continues "`name` in `file` …"."""

    name: str
    text: str
    is_damage: bool
