"""The merge methods, one file each. A method's kind is told by what its module exports (`design.md` §2).

- `coefficients(gram, strengths)`: a combination of the deltas; exact, and done in factors.
- `merge(deltas, strengths)`: element by element, on row tiles; with `partial` for what it must know of the whole target
  first, and `finish` for what is done to the whole result.
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


def is_linear(method: ModuleType) -> bool:
    """Whether a method only combines the deltas, and works from their Gram matrix."""
    return hasattr(method, "coefficients")


def shares_basis(method: ModuleType) -> bool:
    """Whether a method works on coordinates in KnOTS' shared basis."""
    return getattr(method, "SHARES_BASIS", False)


def verb(method: ModuleType) -> Callable[..., Any]:
    """The function whose signature has a method's parameters."""
    return method.coefficients if is_linear(method) else method.merge


def degree(method: ModuleType, settings: Mapping[str, Any]) -> int:
    """How a result goes with a common factor of the strengths: 0 not at all, 1 along with it.

    Args:
        method: its module.
        settings: by name; what the degree depends on is read, the rest is not.
    """
    if hasattr(method, "DEGREE"):
        return method.DEGREE
    return method.degree(**{name: settings[name] for name in settable(method.degree) if name in settings})
