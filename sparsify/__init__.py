"""The sparsifiers, one file each: they set entries of one LoRA's delta to zero before it meets the others."""

from types import ModuleType

from ..core.registry import Registry
from . import dare, dare_conflict, della, della_conflict, trim

SPARSIFIERS: Registry[ModuleType] = Registry(
    "sparsifier",
    {
        "trim": trim,
        "dare": dare,
        "della": della,
        "dare_conflict": dare_conflict,
        "della_conflict": della_conflict,
    },
)

__all__ = ["SPARSIFIERS"]
