"""The merge methods, one file each. A method's kind is told by what its module exports (`design.md` §2).

- `coefficients(gram, strengths)`: a combination; exact, and done in factors.
- `merge(deltas, strengths)`: element by element, on row tiles, with `partial` for what it needs of the whole target
  and `finish` for what it does to it.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ...core.params import settable
from ...core.registry import Registry
from . import consensus, karcher, knots_ties, normalize, slerp, ties, weighted_average, weighted_sum

METHODS: Registry[ModuleType] = Registry(
    "merge method",
    {
        "weighted_sum": weighted_sum,
        "weighted_average": weighted_average,
        "slerp": slerp,
        "karcher": karcher,
        "normalize": normalize,
        "ties": ties,
        "consensus": consensus,
        "knots_ties": knots_ties,
    },
)

__all__ = ["METHODS", "degree", "is_linear", "shares_basis", "verb"]


def is_linear(module: ModuleType) -> bool:
    """Whether a method's result is a combination of the deltas."""
    return hasattr(module, "coefficients")


def shares_basis(module: ModuleType) -> bool:
    """Whether a method works in KnOTS' shared basis."""
    return getattr(module, "SHARES_BASIS", False)


def verb(module: ModuleType) -> Callable[..., Any]:
    """The function whose signature has a method's parameters."""
    return module.coefficients if is_linear(module) else module.merge


def degree(module: ModuleType, settings: Mapping[str, Any]) -> int:
    """How a result grows with a common factor of the strengths: 0 not at all, 1 with it."""
    if hasattr(module, "DEGREE"):
        return module.DEGREE
    return module.degree(**{name: settings[name] for name in settable(module.degree) if name in settings})
