"""Values out of a file, checked: factors must be floating-point numbers, an alpha one finite number."""

from collections.abc import Mapping
from math import isfinite, prod

from torch import Tensor

from ...core.errors import FileError
from ...core.tensorfile import TensorFile, TensorInfo
from .module import Module


def factor(tensors: TensorFile, info: TensorInfo) -> Tensor:
    """A tensor of floating-point numbers, as stored.

    Raises:
        FileError: it holds none.
    """
    found = tensors.read(info.name)
    if not found.is_floating_point():
        raise FileError(
            f"`{info.name}` of `{tensors.path}` holds {found.dtype}, not floating-point numbers; the file is"
            " damaged or of another format."
        )
    return found


def number(tensors: TensorFile, info: TensorInfo) -> float:
    """The one number of an alpha.

    Raises:
        FileError: it is not finite.
    """
    found = float(tensors.read(info.name))
    if not isfinite(found):
        raise FileError(f"`{info.name}` of `{tensors.path}` is {found}; the file is damaged. Get it again.")
    return found


def number_problem(roles: Mapping[str, TensorInfo]) -> str:
    """What is wrong with the shape of an alpha or a scalar; empty if nothing is."""
    for role, what in (("alpha", "an alpha"), ("scalar", "a scalar")):
        if role in roles and prod(roles[role].shape) != 1:
            return f"has {what} of shape {roles[role].shape}, not one number"
    return ""


def scale(module: Module, tensors: TensorFile, rank: int) -> float:
    """`alpha / rank`, 1 without alpha, times a scalar that old LyCORIS files hold, times the module's gain.

    ComfyUI does not know the scalar; the trainer multiplied by it (`spec/comfyui-contract.md` §3.1-3.2).

    Raises:
        FileError: alpha or scalar cannot be read, or is not a finite number.
    """
    made = module.gain
    if "alpha" in module.roles:
        made *= number(tensors, module.roles["alpha"]) / rank
    if "scalar" in module.roles:
        made *= number(tensors, module.roles["scalar"])
    return made
