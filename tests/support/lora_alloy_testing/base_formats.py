"""One small module of every format that depends on the base weight, and the delta its formula gives.

Every formula is written out in float64 NumPy, in the convention ComfyUI renders, or the trainer's where ComfyUI
reads nothing.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

NAME = "lora_unet_block_proj"
SHAPE, KERNEL, SQUARE = (24, 16), (24, 8, 3, 3), (16, 16)

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """A file of one module, its base weight, and its delta `(*w)` in float64.

    `is_comfyui` says whether ComfyUI reads it; `lycoris` names LyCORIS' module where that means the same.
    """

    title: str
    tensors: dict[str, Tensor]
    base: Tensor
    expected: Array
    is_comfyui: bool = True
    lycoris: str = ""
    module: str = NAME

    def __str__(self) -> str:
        return self.title


def noise(*shape: int, size: float = 0.3, seed: int = 0) -> Tensor:
    """Gaussian numbers that depend on the shape and the seed."""
    generator = torch.Generator().manual_seed(prod(shape) + 1000 * seed + sum(shape))
    return torch.randn(shape, generator=generator) * size


def wide(value: Tensor) -> Array:
    """As float64."""
    return value.double().numpy()


def base_of(shape: tuple[int, ...]) -> Tensor:
    """A base weight."""
    return noise(*shape, size=0.5, seed=9)


# DoRA


def _lora(
    shape: tuple[int, ...], alpha: float | None = 2.0, rank: int = 4
) -> tuple[dict[str, Tensor], Array]:
    kernel = (1,) * (len(shape) - 2)
    up, down = noise(shape[0], rank, *kernel, seed=1), noise(rank, *shape[1:], seed=2)
    tensors = {"lora_up.weight": up, "lora_down.weight": down}
    if alpha is not None:
        tensors["alpha"] = torch.tensor(alpha)
    scale = 1.0 if alpha is None else alpha / rank
    flat = wide(up).reshape(shape[0], rank) @ wide(down).reshape(rank, -1)
    return tensors, (scale * flat).reshape(shape)


def _norms(weight: Array, axis: int) -> Array:
    """The norm of every output (axis 0) or input (axis 1), in a shape that broadcasts."""
    others = tuple(place for place in range(weight.ndim) if place != axis)
    return np.sqrt((weight**2).sum(others, keepdims=True))


def stretched(base: Array, delta: Array, magnitudes: Array, axis: int, of_base: bool) -> Array:
    """What DoRA adds to `base`; `of_base` divides by the base's norms, else by the patched weight's."""
    patched = base + delta
    norms = _norms(base if of_base else patched, axis)
    shape = [1] * base.ndim
    shape[axis] = -1
    return patched * (magnitudes.reshape(shape) / norms) - base


def _dora(
    title: str, shape: tuple[int, ...], ending: str, form: tuple[int, ...], axis: int, of_base: bool
) -> Case:
    base = base_of(shape)
    tensors, delta = _lora(shape)
    lengths = _norms(wide(base) + delta, axis).reshape(-1)
    magnitudes = torch.from_numpy(lengths).float() * (1 + noise(len(lengths), size=0.2, seed=4))
    tensors[ending] = magnitudes.reshape(form)
    expected = stretched(wide(base), delta, wide(magnitudes), axis, of_base)
    return Case(title, _named(tensors), base, expected, "dora_scale" in ending and len(form) > 1)


def _named(tensors: dict[str, Tensor], name: str = NAME) -> dict[str, Tensor]:
    return {f"{name}.{role}": value for role, value in tensors.items()}


# rotations


def _turn(blocks: Array, limit: float) -> Array:
    skew = blocks - blocks.swapaxes(-1, -2)
    norm = np.sqrt((skew**2).sum()) + 1e-8
    if 0 < limit < norm:
        skew = skew * limit / norm
    eye = np.eye(skew.shape[-1])
    return (eye + skew) @ np.linalg.inv(eye - skew)


def _diagonal(blocks: Array) -> Array:
    size = blocks.shape[-1]
    whole = np.zeros((len(blocks) * size,) * 2)
    for place, block in enumerate(blocks):
        whole[place * size : (place + 1) * size, place * size : (place + 1) * size] = block
    return whole


def _oft(title: str, shape: tuple[int, ...], alpha: float | None, has_rescale: bool = False) -> Case:
    base, blocks = base_of(shape), noise(6, shape[0] // 6, shape[0] // 6, seed=5)
    tensors = {"oft_blocks": blocks}
    if alpha is not None:
        tensors["alpha"] = torch.tensor(alpha)
    if has_rescale:
        tensors["rescale"] = 1 + noise(shape[0], *(1,) * (len(shape) - 1))
    turn = _diagonal(_turn(wide(blocks), alpha or 0.0))
    flat = wide(base).reshape(shape[0], -1)
    lycoris = "" if has_rescale or alpha else "oft"
    return Case(title, _named(tensors), base, (turn.T @ flat - flat).reshape(shape), lycoris=lycoris)


def _kohya_oft(title: str, heights: tuple[int, ...], alpha: float) -> Case:
    """kohya's: the limit is alpha times the rows, part by part; a list of blocks for the parts of a weight."""
    base, name = base_of((sum(heights), 16)), "oft_unet_block_proj"
    tensors, made, at = {"alpha": torch.tensor(alpha)}, [], 0
    for place, height in enumerate(heights):
        blocks = noise(2, height // 2, height // 2, seed=place + 1)
        tensors["oft_blocks" if len(heights) == 1 else f"oft_blocks.{place}"] = blocks
        rows = wide(base)[at : at + height]
        made.append(_diagonal(_turn(wide(blocks), alpha * height)).T @ rows - rows)
        at += height
    return Case(title, _named(tensors, name), base, np.concatenate(made), False, module=name)


def _boft(title: str, shape: tuple[int, ...], alpha: float | None, has_rescale: bool = False) -> Case:
    stages, size = 4, 4
    base, blocks = base_of(shape), noise(stages, shape[0] // size, size, size, seed=6)
    tensors = {"oft_blocks": blocks}
    if alpha is not None:
        tensors["alpha"] = torch.tensor(alpha)
    turns = _turn(wide(blocks), alpha or 0.0)
    turned = wide(base).reshape(shape[0], -1)
    for stage in range(stages):
        apart = 2**stage * size // 2
        order = [
            start + place + half * apart
            for start in range(0, shape[0], 2 * apart)
            for place in range(apart)
            for half in range(2)
        ]
        met = _diagonal(turns[stage]) @ turned[order]
        turned = np.empty_like(met)
        turned[order] = met
    if has_rescale:
        tensors["rescale"] = 1 + noise(shape[0], *(1,) * (len(shape) - 1))
        turned = turned * wide(tensors["rescale"]).reshape(-1, 1)
    expected = turned.reshape(shape) - wide(base)
    lycoris = "" if alpha else "boft"
    return Case(title, _named(tensors), base, expected, alpha is not None, lycoris)


def _peft_oft(title: str, shape: tuple[int, ...], blocks: int, size: int, is_scaled: bool = False) -> Case:
    base, count = base_of(shape), size * (size - 1) // 2
    triangles = noise(blocks, count, size=0.1, seed=7)
    tensors = {"oft_R.weight": triangles}
    values = wide(triangles)
    if is_scaled:
        tensors["oft_R.scaled_oft"] = torch.tensor(1)
        values = values / count**0.5
    turns = []
    for row in values:
        skew, at = np.zeros((size, size)), iter(row)
        for i in range(size):
            for j in range(i + 1, size):
                skew[i, j] = next(at)
        skew = skew - skew.T
        power = np.linalg.matrix_power
        turns.append(np.eye(size) + 2 * skew + 2 * power(skew, 2) + 2 * power(skew, 3) + power(skew, 4))
    width = prod(shape[1:])
    turn = _diagonal(np.stack(turns * (width // (blocks * size))))
    flat = wide(base).reshape(shape[0], -1)
    return Case(title, _named(tensors), base, (flat @ turn.T - flat).reshape(shape), False)


# the rest


def _glora(
    title: str, shape: tuple[int, ...], alpha: float | None, is_old: bool = False, has_dora: bool = False
) -> Case:
    rank, kernel = 4, (1,) * (len(shape) - 2)
    base, outputs, inputs = base_of(shape), shape[0], shape[1]
    a1, a2 = noise(inputs, rank, *kernel, seed=1), noise(rank, inputs, *kernel, seed=2)
    b1, b2 = noise(outputs, rank, *kernel, seed=3), noise(rank, *shape[1:], seed=4)
    mapped = np.einsum("oi...,ij->oj...", wide(base), wide(a1.flatten(1)) @ wide(a2.flatten(1)))
    flat = wide(b1).reshape(outputs, rank) @ wide(b2).reshape(rank, -1)
    scale = 1.0 if alpha is None else alpha / rank
    expected = scale * (mapped + flat.reshape(shape))
    if is_old:
        a1, a2, b1, b2 = a2, a1, b2, b1
    tensors = {"a1.weight": a1, "a2.weight": a2, "b1.weight": b1, "b2.weight": b2}
    if alpha is not None:
        tensors["alpha"] = torch.tensor(alpha)
    if has_dora:
        tensors["dora_scale"] = (1 + noise(inputs, size=0.2)).abs().reshape(1, inputs, *kernel)
        expected = stretched(wide(base), expected, wide(tensors["dora_scale"]), 1, False)
    return Case(title, _named(tensors), base, expected, lycoris="" if is_old or has_dora else "glora")


def _ia3(title: str, shape: tuple[int, ...], is_input: bool) -> Case:
    base, count = base_of(shape), shape[1 if is_input else 0]
    louder = noise(count) if len(shape) == 2 else noise(1, count, 1, 1)
    tensors = {"weight": louder, "on_input": torch.tensor(int(is_input))}
    axes = [1] * len(shape)
    axes[1 if is_input else 0] = count
    expected = wide(base) * wide(louder).reshape(axes)
    return Case(title, _named(tensors), base, expected, False, "ia3")


_PEFT = "lora_magnitude_vector"
CASES = [
    _dora("dora by output on lora", SHAPE, "dora_scale", (24, 1), 0, True),
    _dora("dora by input on lora", SHAPE, "dora_scale", (1, 16), 1, False),
    _dora("dora by output on lora, convolution", KERNEL, "dora_scale", (24, 1, 1, 1), 0, True),
    _dora("dora by input on lora, convolution", KERNEL, "dora_scale", (1, 8, 1, 1), 1, False),
    _dora("dora by output on lora, square", SQUARE, "dora_scale", (16, 1), 0, True),
    _dora("dora by input on lora, square", SQUARE, "dora_scale", (1, 16), 1, False),
    _dora("dora of one axis on lora", SHAPE, "dora_scale", (24,), 0, False),
    _dora("dora of peft on lora", SHAPE, _PEFT, (24,), 0, False),
    _dora("dora of peft on lora, weight", SHAPE, f"{_PEFT}.weight", (24,), 0, False),
    _dora("dora of peft on lora, default", SHAPE, f"{_PEFT}.default.weight", (24,), 0, False),
    _dora("dora of peft on lora, convolution", KERNEL, _PEFT, (1, 24, 1, 1), 0, False),
    _dora("dora of ai-toolkit on lora", SHAPE, "magnitude", (24,), 0, False),
    _oft("oft", SHAPE, None),
    _oft("oft, limited", SHAPE, 0.5),
    _oft("oft, alpha 0", SHAPE, 0.0),
    _oft("oft, convolution", KERNEL, None),
    _oft("oft, rescaled", SHAPE, None, True),
    _kohya_oft("oft of kohya", (24,), 0.01),
    _kohya_oft("oft of kohya, list", (8, 8, 8, 16), 0.02),
    _boft("boft", (32, 16), 0.0),
    _boft("boft, limited", (32, 16), 0.7),
    _boft("boft, no alpha", (32, 16), None),
    _boft("boft, rescaled convolution", (32, 4, 3, 3), 0.0, True),
    _peft_oft("oft of peft", SHAPE, 4, 4),
    _peft_oft("oft of peft, shared", SHAPE, 1, 4),
    _peft_oft("oft of peft, convolution", KERNEL, 9, 8),
    _peft_oft("oft of onetrainer, scaled", SHAPE, 2, 8, True),
    _glora("glora", SHAPE, 2.0),
    _glora("glora, no alpha", SHAPE, None),
    _glora("glora, square", SQUARE, 2.0),
    _glora("glora, convolution", KERNEL, 2.0),
    _glora("glora, old", SHAPE, 2.0, True),
    _glora("glora, old and square", SQUARE, 2.0, True),
    _glora("glora with dora", SHAPE, 2.0, has_dora=True),
    _ia3("ia3 on outputs", SHAPE, False),
    _ia3("ia3 on inputs", SHAPE, True),
    _ia3("ia3 on outputs, convolution", KERNEL, False),
    _ia3("ia3 on inputs, convolution", KERNEL, True),
]
