"""A module as its header describes it: names, shapes, dtypes; no values."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.tensorfile import TensorInfo


@dataclass(frozen=True)
class Module:
    """The tensors of one file for one module.

    Attributes:
        name: the module's name in the file, without a role's suffix.
        format: the format that recognised it.
        roles: role → tensor; `up`, `down`, and if stored `mid`, `alpha`.
        rank: the inner size.
        shape: of the delta, `(o, *rest)`.
    """

    name: str
    format: str
    roles: Mapping[str, TensorInfo]
    rank: int
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The storage dtype of the factors, as the header spells it."""
        return self.roles["up"].dtype


@dataclass(frozen=True)
class Problem:
    """Why a module's tensors cannot be read: `text` continues "`name` in `file` …"."""

    name: str
    text: str
    is_damage: bool
