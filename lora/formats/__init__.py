"""One on-disk format each. A format splits tensor names into module and role, recognises its own, and loads
it.

First to recognise wins. What no format here claims is told apart into *known* (another format's tensor) and
*unknown*; nothing passes unmentioned.
"""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from ...core.tensorfile import TensorFile, TensorInfo
from ..factors import Delta
from . import boft, diff, dora, glora, ia3, loha, lokr, lora, oft, oft_peft, others, replacement
from .module import Module, Problem


class Format(Protocol):
    """What a format's module exports; `UNREAD` too, role → why it is left over, where it has such roles."""

    NAME: str

    @staticmethod
    def split(tensor_name: str) -> tuple[str, str] | None:
        """The module and the role of a tensor, or None if the name is not of this format."""
        ...

    @staticmethod
    def recognise(name: str, roles: Mapping[str, TensorInfo]) -> "Module | Problem | None":
        """The module that these tensors make up, what is wrong with them, or None if another format's.

        Roles that the module does not take are offered to the formats behind.
        """
        ...

    @staticmethod
    def load(module: Module, tensors: TensorFile, base: Tensor | None) -> Delta:
        """The module's delta; `base` is the base weight, None unless the module has a `base_reason`."""
        ...


# Where a module is stored twice, ComfyUI takes the last that it finds; this is its order, the last first.
FORMATS: tuple[Format, ...] = (replacement, diff, boft, oft, glora, lokr, loha, lora, oft_peft, ia3)  # type: ignore[assignment]

_TITLES = {
    "boft": "BOFT",
    "diff": "full difference",
    "glora": "GLoRA",
    "ia3": "(IA)³",
    "replacement": "replaced weight",
    "lora": "LoRA",
    "oft": "OFT",
    "oft_peft": "OFT of PEFT's kind",
}


def title(module: Module) -> str:
    """What a user calls the format of a module."""
    name = _TITLES.get(module.format, module.format)
    return f"{name} with DoRA" if any(role in module.roles for role in dora.ROLES) else name


__all__ = ["FORMATS", "Format", "Module", "Problem", "ia3", "lora", "others", "title"]
