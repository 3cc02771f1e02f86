"""`resize`, the one function of torchvision's that a core node could call."""

from collections.abc import Sequence
from enum import Enum

from torch import Tensor
from torch.nn.functional import interpolate


def resize(
    image: Tensor, size: Sequence[int], interpolation: Enum | None = None, antialias: bool = True
) -> Tensor:
    """Resize `(c, h, w)` or `(n, c, h, w)` to `size`, bilinearly unless `interpolation` says otherwise."""
    batched = image if image.ndim == 4 else image[None]
    kind = interpolation.value if interpolation is not None else "bilinear"
    smooth = antialias and kind != "nearest"
    resized = interpolate(batched, size=tuple(size), mode=kind, antialias=smooth)
    return resized if image.ndim == 4 else resized[0]
