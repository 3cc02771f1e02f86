"""A merge in a given number of bytes: the directions that carry most energy for their size stay.

A direction of a target `(o, i)` costs `o + i` numbers and carries the square of its singular value. Keeping those
of the largest ratio is the optimum for the sum of squared errors over all targets.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..core.errors import RecipeError
from ..core.progress import Progress, silent, told
from ..core.threads import one_thread
from ..lora.factors import Delta, LowRank
from ..lora.full import Kron
from .patch import Patch, shaped

# What a safetensors header says of one module, three names, shapes and offsets; and room for our own words.
MODULE_BYTES = 700
HEADER_BYTES = 4000


def fitted(patches: Sequence[Patch], size_bytes: int, progress: Progress = silent) -> tuple[Patch, ...]:
    """Patches as ordinary LoRA factors that fit into a file of `size_bytes`.

    Args:
        patches: of one merge.
        size_bytes: of the whole file, its header included.
        progress: told after every target of each of the two passes.

    Raises:
        RecipeError: not even one direction for each target fits.
    """
    costs = [(patch.shape[0] + prod(patch.shape[1:])) * patch.dtype.itemsize for patch in patches]
    free = size_bytes - MODULE_BYTES * len(patches) - sum(costs)
    if free < 0:
        raise RecipeError(
            f"{size_bytes:,} bytes are too few: one direction for each of the {len(patches)} targets takes"
            f" {size_bytes - free:,} already. Allow more."
        )
    with one_thread():
        values = [singular_values(patch.delta) for patch in told(patches, len(patches), "measure", progress)]
        ranks = _ranks(values, costs, free)
        pairs = zip(patches, ranks, strict=True)
        return tuple(shaped(patch, 1.0, rank) for patch, rank in told(pairs, len(patches), "cut", progress))


def singular_values(delta: Delta) -> Tensor:
    """The singular values of a delta, descending, float64, as many as its rank may be."""
    if isinstance(delta, LowRank):
        core = torch.linalg.qr(delta.up.double())[1] @ torch.linalg.qr(delta.down.double().T)[1].T
        return torch.linalg.svdvals(core) * abs(delta.scale)
    if isinstance(delta, Kron):
        outer = torch.outer(torch.linalg.svdvals(delta.a.double()), torch.linalg.svdvals(delta.b.double()))
        return torch.sort(outer.flatten(), descending=True).values * abs(delta.scale)
    return torch.linalg.svdvals(delta.flat().double())


def _ranks(values: Sequence[Tensor], costs: Sequence[int], free: int) -> list[int]:
    """One direction for each target, and of the others those of most energy a byte, as long as they fit."""
    owner = torch.cat([torch.full((len(one) - 1,), at) for at, one in enumerate(values)])
    worth = torch.cat([one[1:].square() / cost for one, cost in zip(values, costs, strict=True)])
    order = torch.sort(worth, descending=True, stable=True).indices
    order = order[worth[order] > 0]
    price = torch.tensor(costs)[owner[order]]
    taken = owner[order][price.cumsum(0) <= free]
    return (torch.bincount(taken, minlength=len(values)) + 1).tolist()
