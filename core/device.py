"""Where tensors are worked on: what a device lacks, and when it is full."""

import torch
from torch import Tensor

_WITHOUT_DOUBLE = ("mps",)  # Apple's GPUs know single precision at most


def double(tensor: Tensor) -> Tensor:
    """The tensor in double precision; on the CPU where its device has none."""
    if tensor.device.type in _WITHOUT_DOUBLE:
        tensor = tensor.cpu()
    return tensor.double()


def total(tensor: Tensor, dim: int | None = None) -> Tensor:
    """The sum in double precision; on the CPU where the tensor's device has none.

    Args:
        tensor: any shape.
        dim: what is added up, and kept as a dimension of 1; None for all.
    """
    if tensor.device.type in _WITHOUT_DOUBLE:
        tensor = tensor.cpu()
    if dim is None:
        return tensor.sum(dtype=torch.float64)
    return tensor.sum(dim, keepdim=True, dtype=torch.float64)
