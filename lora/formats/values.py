"""Values out of a file, checked: factors must be floating-point numbers, an alpha one finite number."""

from math import isfinite

from torch import Tensor

from ...core.errors import FileError
from ...core.tensorfile import TensorFile, TensorInfo


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
