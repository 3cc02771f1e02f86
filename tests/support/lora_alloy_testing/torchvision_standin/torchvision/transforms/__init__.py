"""The transforms that are named, and at most composed, when ComfyUI's modules load."""

from collections.abc import Callable, Sequence
from enum import Enum

import torch
from torch import Tensor

from . import functional

__all__ = ["Compose", "InterpolationMode", "Normalize", "functional"]


class InterpolationMode(Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Tensor) -> Tensor:
        for transform in self.transforms:
            image = transform(image)
        return image


class Normalize(torch.nn.Module):
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, image: Tensor) -> Tensor:
        mean, std = (torch.as_tensor(each).to(image).view(-1, 1, 1) for each in (self.mean, self.std))
        return (image - mean) / std
