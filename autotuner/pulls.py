"""What a score needs of a stack: dot products of its deltas, all of them, and within each delta's own row space.

With these a combination is scored without being made: how far it is from a LoRA, on the inputs which that LoRA reads
and on all others, is a quadratic form in its coefficients (`design.md` §3a).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..analysis.similarity import gram_matrix
from ..core.progress import Progress, silent, told
from ..core.threads import one_thread
from ..lora.factors import Delta, LowRank
from ..lora.stack import Stack
from ..lora.target import Target

SMALLEST = 1e-5  # of the largest singular value: directions below it are rounding
CHUNK = 512  # rows of a delta without factors at a time


@dataclass(frozen=True)
class Pull:
    """What was measured on one target.

    Attributes:
        target: the target.
        entries: the entries that touch it.
        strengths: theirs, on this target's branch; `(n,)` float64.
        gram: `(n, n)` float64, dot products at strength 1.
        own: `(n, n, n)` float64: `own[k]` are the dot products of all deltas behind the projector on the k-th's row
            space.
    """

    target: Target
    entries: tuple[int, ...]
    strengths: Tensor
    gram: Tensor
    own: Tensor


def pulls_of(stack: Stack, progress: Progress = silent) -> list[Pull]:
    """Measure every group of a stack, in the order of its groups.

    Raises:
        FileError: a file cannot be read.
    """
    found = []
    for group in told(stack.walk(), len(stack.groups), "compare", progress):
        with one_thread(), torch.no_grad():
            deltas = stack.load(group)
            entries = tuple(one.entry for one in group.contributions)
            strengths = [stack.entries[entry].strength_on(group.target) for entry in entries]
            own = torch.stack([_within(deltas, row_space(delta)) for delta in deltas])
            given = torch.tensor(strengths, dtype=torch.float64)
            found.append(Pull(group.target, entries, given, gram_matrix(deltas), own))
    return found


def row_space(delta: Delta) -> Tensor:
    """An orthonormal basis of the inputs that a delta reads: `(i, r)` float32; `r` is 0 for a delta of zeros."""
    if isinstance(delta, LowRank):
        down, up = delta.down.float(), delta.up.float()
        basis, triangle = torch.linalg.qr(down.T)
        # The up may be of lower rank than the down: what it never passes on is not read.
        _, values, right = torch.linalg.svd(torch.linalg.qr(up)[1] @ triangle.T, full_matrices=False)
        return basis @ right[values > SMALLEST * values[:1]].T
    flat = delta.flat()
    if flat.shape[0] >= flat.shape[1]:
        return torch.eye(flat.shape[1])
    _, values, right = torch.linalg.svd(flat, full_matrices=False)
    return right[values > SMALLEST * values[:1]].T


def _within(deltas: Sequence[Delta], basis: Tensor) -> Tensor:
    if all(isinstance(delta, LowRank) for delta in deltas):
        ups = torch.cat([delta.up.float() * delta.scale for delta in deltas if isinstance(delta, LowRank)], 1)
        downs = torch.cat([delta.down.float() for delta in deltas if isinstance(delta, LowRank)]) @ basis
        products = (ups.T @ ups).double() * (downs @ downs.T)
        owner = torch.repeat_interleave(
            torch.arange(len(deltas)), torch.tensor([delta.rank for delta in deltas])
        )
        rows = products.new_zeros(len(deltas), len(products)).index_add_(0, owner, products)
        return products.new_zeros(len(deltas), len(deltas)).index_add_(1, owner, rows)
    seen = [(delta.flat() @ basis).flatten().double() for delta in deltas]
    return torch.stack([torch.stack([one @ other for other in seen]) for one in seen])
