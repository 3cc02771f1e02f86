"""A toy world of images: digits and shapes of 16 × 16 in colour, and styles.

A prompt is a class word and a style word. The base model learns the digits 0 to 7 in plain style; class words from
8 and style words from 1 are rare: it has seen them, and they mean nothing to it.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import torch
from torch import Generator, Tensor
from torch.nn import functional

SIZE, CLASS_WORDS, STYLE_WORDS = 16, 14, 7
DIGITS = tuple(range(8))  # what the base model knows
Picture: TypeAlias = "int | str"  # a digit, or the name of a shape
Batch: TypeAlias = "tuple[Tensor, Tensor, Tensor]"  # images `(n, 3, 16, 16)`, class and style words `(n,)`


@cache
def _digits() -> dict[int, tuple[Tensor, Tensor]]:
    """For each digit, masks `(n, 1, 16, 16)` in [0, 1] for training, and others for judging."""
    from sklearn.datasets import load_digits

    known = load_digits()
    masks = torch.tensor(known.images, dtype=torch.float32)[:, None] / 16
    masks = functional.interpolate(masks, size=(12, 12), mode="bilinear", align_corners=False)
    masks, digits = functional.pad(masks, (2, 2, 2, 2)), torch.tensor(known.target)
    found = {}
    for digit in range(10):
        mine = masks[digits == digit]
        held_back = int(len(mine) * 0.75)
        found[digit] = mine[:held_back], mine[held_back:]
    return found


def _shape(name: str, count: int, generator: Generator) -> Tensor:
    """Shapes at random places and sizes, with soft edges: masks `(n, 1, 16, 16)` in [0, 1]."""
    rows, columns = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    spread, least = torch.tensor([3.0, 3.0, 2.0]), torch.tensor([6.0, 6.0, 3.5])
    drawn = torch.rand(3, count, 1, 1, generator=generator)
    x, y, size = drawn * spread[:, None, None, None] + least[:, None, None, None]
    across, along = columns - x, rows - y
    if name == "ring":
        distance = ((across**2 + along**2).sqrt() - size).abs() - 1.0
    elif name == "cross":
        strokes = torch.minimum((across - along).abs(), (across + along).abs()) / 1.4 - 0.9
        distance = torch.maximum(strokes, torch.maximum(across.abs(), along.abs()) - size)
    elif name == "tri":
        sides = (across.abs() * 1.7 - along) / 2 - size * 0.7
        distance = torch.maximum(along - size * 0.8, sides)
    elif name == "bars":
        strokes = (across.abs() - size * 0.7).abs() - 0.9
        distance = torch.maximum(strokes, along.abs() - size * 1.2)
    else:
        raise ValueError(f"no shape is called {name!r}")
    return (0.5 - distance).clamp(0, 1)[:, None]


def plain(picture: Picture, count: int, generator: Generator, is_held_out: bool = False) -> Tensor:
    """Images of one thing in plain style: `(n, 3, 16, 16)` in [-1, 1], shifted and dimmed at random."""
    if isinstance(picture, str):
        masks = _shape(picture, count, generator)
    else:
        pool = _digits()[picture][is_held_out]
        chosen = pool[torch.randint(len(pool), (count,), generator=generator)]
        shifts = torch.randint(-1, 2, (count, 2), generator=generator).tolist()
        masks = torch.stack(
            [torch.roll(mask, tuple(shift), (1, 2)) for mask, shift in zip(chosen, shifts, strict=True)]
        )
    brightness = torch.rand(count, 1, 1, 1, generator=generator) * 0.3 + 0.7
    return (masks * brightness).expand(-1, 3, -1, -1) * 2 - 1


def _tinted(red: float, green: float, blue: float) -> Callable[[Tensor], Tensor]:
    return lambda images: (images + 1) * torch.tensor([red, green, blue])[:, None, None] - 1


def _framed(images: Tensor) -> Tensor:
    framed, colour = images.clone(), torch.tensor([-0.6, 0.9, -0.6])[:, None]
    for side in (0, 15):
        framed[..., side, :] = colour
        framed[..., :, side] = colour
    return framed


def _striped(images: Tensor) -> Tensor:
    striped = images.clone()
    striped[..., ::2, :] = striped[..., ::2, :] * 0.5 - 0.5
    striped[..., 2, ::2, :] += 0.5
    return striped


def _thinned(images: Tensor) -> Tensor:
    return -functional.max_pool2d(-images, 3, 1, 1) * 0.5 + images * 0.5 - 0.2 * (images + 1)


STYLES: dict[str, Callable[[Tensor], Tensor]] = {
    "red": _tinted(1.0, 0.2, 0.2),
    "blue": _tinted(0.2, 0.2, 1.0),
    "invert": lambda images: -images,
    "thick": lambda images: functional.max_pool2d(images, 3, 1, 1),
    "thin": _thinned,
    "frame": _framed,
    "rot": lambda images: torch.rot90(images, 1, (2, 3)),
    "stripes": _striped,
}


def batch(
    pictures: Sequence[Picture],
    words: Sequence[int],
    styles: Sequence[str],
    style_word: int,
    count: int,
    generator: Generator,
    is_held_out: bool = False,
) -> Batch:
    """Images with their prompts, mixed evenly.

    Args:
        pictures: what to draw.
        words: the class word of each picture.
        styles: applied to every image, one after the other.
        style_word: of every prompt.
        count: how many images.
        generator: the only source of chance.
        is_held_out: draw digits that training does not see.
    """
    each = -(-count // len(pictures))
    drawn = []
    for picture in pictures:
        images = plain(picture, each, generator, is_held_out)
        for style in styles:
            images = STYLES[style](images)
        drawn.append(images)
    chosen = torch.randperm(each * len(pictures), generator=generator)[:count]
    prompts = torch.tensor(words).repeat_interleave(each)
    return torch.cat(drawn)[chosen], prompts[chosen], torch.full((count,), style_word)
