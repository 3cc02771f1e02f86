"""One module of each format that needs no base weight, with its delta by the format's formula in float64 NumPy.

    made = CASES["lokr, w2 in factors"]
    made.tensors    # {"lokr_w1": …, "lokr_w2_a": …, …}, by the ending of their names
    made.delta      # (*w), float64

The formulas are those of the papers and of LyCORIS, written out with `einsum` and `kron`; no code of ours is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

__all__ = ["CASES", "Made", "loha", "lokr"]


@dataclass(frozen=True)
class Made:
    """A module's tensors by the ending of their names, and its delta at strength 1.

    Attributes:
        tensors: ending → tensor.
        delta: of the weight, in its own shape, float64.
        bias: of the layer's bias, None where it has none.
        is_read_by_comfyui: whether ComfyUI reads all of it.
    """

    tensors: Mapping[str, Tensor]
    delta: np.ndarray
    bias: np.ndarray | None = None
    is_read_by_comfyui: bool = True


class _Chance:
    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype

    def __call__(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=self._generator).mul(0.3).to(self._dtype)


def _wide(tensor: Tensor) -> np.ndarray:
    return tensor.double().numpy()


def _matrix(a: Tensor, b: Tensor, core: Tensor | None) -> np.ndarray:
    """`a @ b`, or LyCORIS's Tucker form of them around a core."""
    if core is not None:
        return np.einsum("ij...,ip,jq->pq...", _wide(core), _wide(a), _wide(b))
    return np.einsum("or,r...->o...", _wide(a), _wide(b))


def loha(
    shape: tuple[int, ...],
    ranks: tuple[int, int] = (3, 3),
    *,
    seed: int = 0,
    alpha: float | None = None,
    is_tucker: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Made:
    """A LoHa; a convolution's second factors are flat, as trainers save them, unless it is a Tucker one."""
    draw = _Chance(seed, dtype)
    outputs, inputs, *kernel = shape
    tensors: dict[str, Tensor] = {}
    product = np.ones(shape)
    for side, rank in zip((1, 2), ranks, strict=True):
        core = draw(rank, rank, *kernel) if is_tucker else None
        a = draw(rank, outputs) if is_tucker else draw(outputs, rank)
        b = draw(rank, inputs) if is_tucker else draw(rank, inputs * prod(kernel))
        tensors |= {f"hada_w{side}_a": a, f"hada_w{side}_b": b}
        if core is not None:
            tensors[f"hada_t{side}"] = core
        product = product * _matrix(a, b, core).reshape(shape)
    scale = 1.0 if alpha is None else alpha / ranks[0]
    if alpha is not None:
        tensors["alpha"] = torch.tensor(alpha)
    return Made(tensors, scale * product)


def lokr(
    first: tuple[int, int],
    second: tuple[int, ...],
    *,
    ranks: tuple[int, int] = (0, 0),
    seed: int = 0,
    alpha: float | None = None,
    is_tucker: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Made:
    """A LoKr of two matrices of these shapes; a rank of 0 stores the matrix whole."""
    draw = _Chance(seed, dtype)
    tensors: dict[str, Tensor] = {}
    if ranks[0]:
        tensors |= {"lokr_w1_a": draw(first[0], ranks[0]), "lokr_w1_b": draw(ranks[0], first[1])}
        w1 = _matrix(tensors["lokr_w1_a"], tensors["lokr_w1_b"], None)
    else:
        tensors["lokr_w1"] = draw(*first)
        w1 = _wide(tensors["lokr_w1"])
    outputs, inputs, *kernel = second
    rank = ranks[1]
    if rank and is_tucker:
        tensors |= {"lokr_w2_a": draw(rank, outputs), "lokr_w2_b": draw(rank, inputs)}
        tensors["lokr_t2"] = draw(rank, rank, *kernel)
        w2 = _matrix(tensors["lokr_w2_a"], tensors["lokr_w2_b"], tensors["lokr_t2"])
    elif rank:
        tensors |= {"lokr_w2_a": draw(outputs, rank), "lokr_w2_b": draw(rank, inputs * prod(kernel))}
        w2 = _matrix(tensors["lokr_w2_a"], tensors["lokr_w2_b"], None).reshape(second)
    else:
        tensors["lokr_w2"] = draw(*second)
        w2 = _wide(tensors["lokr_w2"])
    divisor = ranks[1] or ranks[0]
    scale = alpha / divisor if alpha is not None and divisor else 1.0
    if alpha is not None:
        tensors["alpha"] = torch.tensor(alpha)
    return Made(tensors, scale * np.kron(w1.reshape(*first, *(1 for _ in kernel)), w2))


def lora(shape: tuple[int, ...], *, alpha: float | None = None, has_bias: bool = False) -> Made:
    """A LoRA in PEFT's spelling, perhaps with a bias of its up."""
    draw = _Chance(9, torch.float32)
    outputs, *rest = shape
    up, down = draw(outputs, 4), draw(4, *rest)
    tensors = {"lora_B.weight": up, "lora_A.weight": down}
    scale = 1.0
    if alpha is not None:
        tensors["alpha"], scale = torch.tensor(alpha), alpha / 4
    bias = None
    if has_bias:
        tensors["lora_B.bias"] = draw(outputs)
        bias = _wide(tensors["lora_B.bias"])
    return Made(tensors, scale * _matrix(up, down, None), bias, not has_bias)


def with_scalar(made: Made, scalar: float) -> Made:
    """As LyCORIS stored a module before it folded the scalar in."""
    return Made({**made.tensors, "scalar": torch.tensor(scalar)}, made.delta * scalar, made.bias, False)


CASES: dict[str, Made] = {
    "loha": loha((24, 18), alpha=1.5),
    "loha without alpha": loha((24, 18)),
    "loha of two ranks": loha((24, 18), (2, 4), alpha=2.0),
    "loha of full rank": loha((12, 10), (4, 4), alpha=4.0),
    "loha in half precision": loha((24, 18), alpha=3.0, dtype=torch.float16),
    "loha in bfloat16": loha((24, 18), alpha=3.0, dtype=torch.bfloat16),
    "loha, a flat convolution": loha((16, 6, 3, 3), alpha=1.0),
    "loha, a Tucker convolution": loha((16, 6, 3, 3), alpha=1.0, is_tucker=True),
    "loha, a Tucker convolution of full rank": loha((8, 6, 3, 3), alpha=2.0, is_tucker=True),
    "lokr, both whole": lokr((4, 3), (6, 8)),
    "lokr, both whole, and an alpha": lokr((4, 3), (6, 8), alpha=1e10),
    "lokr, w2 in factors": lokr((2, 3), (12, 8), ranks=(0, 2), alpha=1.0),
    "lokr, w2 in factors, of half rank": lokr((4, 3), (6, 8), ranks=(0, 4), alpha=1.0),
    "lokr, w1 in factors": lokr((8, 6), (4, 4), ranks=(2, 0), alpha=3.0),
    "lokr, both in factors": lokr((8, 6), (10, 8), ranks=(2, 3), alpha=5.0),
    "lokr without alpha": lokr((4, 3), (6, 8), ranks=(0, 2)),
    "lokr, a whole convolution": lokr((4, 2), (4, 3, 3, 3), alpha=7.0),
    "lokr, a flat convolution": lokr((2, 2), (8, 3, 3, 3), ranks=(0, 2), alpha=1.0),
    "lokr, a Tucker convolution": lokr((2, 2), (8, 3, 3, 3), ranks=(0, 2), alpha=1.0, is_tucker=True),
    "lokr, w1 in factors, w2 a Tucker convolution": lokr(
        (4, 4), (8, 3, 3, 3), ranks=(1, 2), alpha=1.0, is_tucker=True
    ),
    "lora": lora((24, 18), alpha=2.0),
    "lora with a bias": lora((24, 18), has_bias=True),
    "loha with a scalar": with_scalar(loha((24, 18), alpha=1.5), 0.25),
    "lokr with a scalar": with_scalar(lokr((4, 3), (6, 8)), -0.5),
    "lora with a scalar": with_scalar(lora((24, 18), alpha=2.0), 0.5),
}
