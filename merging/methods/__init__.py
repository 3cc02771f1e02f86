"""The merge methods, one file each. A method's kind is told by what its module exports (`design.md` §2)."""

from types import ModuleType

from ...core.registry import Registry
from . import karcher, slerp, weighted_average, weighted_sum

METHODS: Registry[ModuleType] = Registry(
    "merge method",
    {
        "weighted_sum": weighted_sum,
        "weighted_average": weighted_average,
        "slerp": slerp,
        "karcher": karcher,
    },
)

__all__ = ["METHODS"]
