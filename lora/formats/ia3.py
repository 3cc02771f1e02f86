"""(IA)³ (arXiv:2205.05638) as LyCORIS stores it: every input or output of the base weight, a little louder.

`delta = W · weight`, along the inputs where `.on_input` is 1 and along the outputs where it is 0. ComfyUI does not
read it; this is LyCORIS' definition.
"""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType

from torch import Tensor

from ...core.errors import FileError
from ...core.tensorfile import TensorFile, TensorInfo
from ..factors import Delta
from ..full import Dense
from .module import Module, Problem
from .values import factor

NAME = "ia3"
REASON = "factors on the base weight"
NOTE = "ComfyUI does not read (IA)³; a merge applies it as LyCORIS does"
COMPANION = ".weight"  # says nothing by itself: `LoraFile` joins it to a module that has an `.on_input`


def split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor, or None if the name is none of (IA)³'s own."""
    if tensor_name.endswith(".on_input"):
        return tensor_name.removesuffix(".on_input"), "on_input"
    return None


def recognise(name: str, roles: Mapping[str, TensorInfo]) -> Module | Problem | None:
    """The module these tensors make up, what is wrong with them, or None if they are no (IA)³."""
    if "on_input" not in roles:
        return None
    if "weight" not in roles:
        return Problem(name, "is an (IA)³ without its weight", is_damage=True)
    shape, switch = roles["weight"].shape, roles["on_input"].shape
    if prod(switch) != 1 or not shape or 0 in shape or sum(size != 1 for size in shape) > 1:
        text = f"is an (IA)³ of shapes {shape} and {switch}, not a row of numbers and one"
        return Problem(name, text, is_damage=True)
    taken = MappingProxyType({role: roles[role] for role in ("weight", "on_input")})
    return Module(name, NAME, taken, prod(shape), None, base_reason=REASON, note=NOTE)


def load(module: Module, tensors: TensorFile, base: Tensor | None = None) -> Delta:
    """The module's delta on `base`, `(o, *rest)` float32.

    Raises:
        FileError: the numbers cannot be read, or are not as many as the base weight has inputs or outputs.
    """
    assert base is not None, "(IA)³ has a base_reason"
    louder = factor(tensors, module.roles["weight"]).float().flatten()
    axis = 1 if float(tensors.read(module.roles["on_input"].name)) else 0
    if louder.numel() != base.shape[axis]:
        side = "inputs" if axis else "outputs"
        raise FileError(
            f"`{module.name}` of `{tensors.path}` has numbers for {louder.numel()} {side}, and the base weight"
            f" has {base.shape[axis]}; it is for another model."
        )
    sizes = [-1 if place == axis else 1 for place in range(base.dim())]
    return Dense((base * louder.reshape(sizes)).flatten(1), 1.0, module.shape or tuple(base.shape))
