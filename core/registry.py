"""A fixed table of named functions; keys are saved in people's workflows, so add and never rename."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from .errors import RecipeError
from .params import unknown

Function = TypeVar("Function")


class Registry(Mapping[str, Function], Generic[Function]):
    """Names → functions, in the order they are shown. A lookup takes `-` for `_`."""

    def __init__(self, what: str, table: Mapping[str, Function]) -> None:
        self.what = what
        self._table = dict(table)

    def __getitem__(self, name: str) -> Function:
        key = name.replace("-", "_")
        if key not in self._table:
            raise RecipeError(unknown(self.what, name, self._table))
        return self._table[key]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.replace("-", "_") in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)
