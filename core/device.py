"""Where tensors are worked on: which devices there are, what one lacks, and when it is full."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .errors import RecipeError

WITHOUT_DOUBLE = ("mps",)  # Apple's GPUs know single precision at most
_FULL = "out of memory"  # what the devices that have no exception of their own say


def usable(device: torch.device | str) -> torch.device:
    """The device of a name.

    Raises:
        RecipeError: there is no such device here.
    """
    try:
        named = torch.device(device)
        if named.type != "meta":  # which has shapes, and no values
            torch.zeros(1, device=named)
            return named
        problem = "it holds no values"
    except (RuntimeError, AssertionError, ValueError) as caught:  # torch says so in either way
        problem = str(caught).split("\n")[0].rstrip(".")[:200]
    raise RecipeError(
        f"There is no device `{device}` to work on here ({problem}). Name another one, such as `cpu`, or none."
    )


def double(tensor: Tensor) -> Tensor:
    """The tensor in double precision; on the CPU where its device has none."""
    return _with_double(tensor).double()


def total(tensor: Tensor, dim: int | None = None, *, keepdim: bool = False) -> Tensor:
    """The sum in double precision; on the CPU where the tensor's device has none.

    Args:
        tensor: any shape.
        dim: what is added up; None for all.
        keepdim: whether it is left as a dimension of 1.
    """
    tensor = _with_double(tensor)
    if dim is None:
        return tensor.sum(dtype=torch.float64)
    return tensor.sum(dim, keepdim=keepdim, dtype=torch.float64)


def _with_double(tensor: Tensor) -> Tensor:
    return tensor.cpu() if tensor.device.type in WITHOUT_DOUBLE else tensor


def is_refusal(problem: RuntimeError) -> bool:
    """Whether a device could not do what was asked, for want of memory or of the operation itself."""
    is_full = isinstance(problem, torch.cuda.OutOfMemoryError) or _FULL in str(problem).lower()
    return is_full or isinstance(problem, NotImplementedError)


def emptied(device: torch.device) -> None:
    """Give back what torch holds of a device's memory and does not use."""
    empty = getattr(getattr(torch, device.type, None), "empty_cache", None)
    if empty is not None:
        empty()


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Products in whole single precision, whatever the host has chosen, which is restored afterwards."""
    if device.type != "cuda" or not torch.backends.cuda.matmul.allow_tf32:
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = True
