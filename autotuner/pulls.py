"""What a score needs of a stack: dot products of its deltas, all of them, and within each delta's own row space.

With these a combination is scored without being made: how far it is from a LoRA, on the inputs which that LoRA reads
and on all others, is a quadratic form in its coefficients (`design.md` §3a).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.progress import Progress, silent, told
from ..core.rng import spread
from ..core.threads import one_thread
from ..lora.factors import Delta, LowRank
from ..lora.full import Kron
from ..lora.stack import Stack

SMALLEST = 1e-5  # of the largest singular value: directions below it are rounding
BUDGET = 1 << 26  # bytes of dot products; with many LoRAs they are kept for some targets only
LEAST = 64  # targets that are kept all the same


@dataclass(frozen=True)
class Pulls:
    """What was measured on the targets that the same entries touch.

    Attributes:
        entries: these entries of the stack, `n` of them.
        places: the targets, as places among the groups of the stack; `t` of them.
        strengths: of the entries, on each target's branch: `(t, n)` float64.
        gram: `(t, n, n)` float64, dot products at strength 1.
        own: `(t, n, n, n)` float64: `own[:, k]` are the dot products of all deltas behind the projector on the k-th's
            row space.
    """

    entries: tuple[int, ...]
    places: tuple[int, ...]
    strengths: Tensor
    gram: Tensor
    own: Tensor

    def energies(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """How far combinations are from each LoRA at its strength: `‖(M − wΔ) P‖²` and `‖M − wΔ‖²`.

        Args:
            coefficients: `(t, n)` float64, of the deltas at strength 1.

        Returns:
            Two times `(t, n)` float64.
        """
        errors = coefficients[:, None, :] - torch.diag_embed(self.strengths)
        own = torch.einsum("tka,tkab,tkb->tk", errors, self.own, errors)
        everything = torch.einsum("tka,tab,tkb->tk", errors, self.gram, errors)
        return own.clamp(min=0), everything.clamp(min=0)

    @property
    def whole(self) -> Tensor:
        """`‖wΔ‖²`: `(t, n)` float64."""
        return self.strengths.square() * self.gram.diagonal(dim1=1, dim2=2)


def pulls_of(stack: Stack, progress: Progress = silent) -> list[Pulls]:
    """Measure the groups of a stack; with many LoRAs some of them, spread over the model.

    Raises:
        FileError: a file cannot be read.
    """
    kept = set(_affordable(stack))
    found: dict[tuple[int, ...], list[tuple[int, Tensor, Tensor, Tensor]]] = {}
    for place, group in enumerate(told(stack.walk(), len(stack.groups), "compare", progress)):
        if place not in kept:
            continue
        entries = tuple(one.entry for one in group.contributions)
        strengths = [stack.entries[entry].strength_on(group.target) for entry in entries]
        with one_thread(), torch.no_grad():
            gram, own = dot_products(stack.load(group))
        given = torch.tensor(strengths, dtype=torch.float64)
        found.setdefault(entries, []).append((place, given, gram, own))
    made = []
    for entries, ones in found.items():
        places, strengths, grams, owns = zip(*ones, strict=True)
        made.append(Pulls(entries, places, torch.stack(strengths), torch.stack(grams), torch.stack(owns)))
    return made


def _affordable(stack: Stack) -> list[int]:
    """The places of groups whose dot products fit the budget: all of them, but with dozens of LoRAs."""
    sizes = [8 * (len(group.contributions) ** 3 + len(group.contributions) ** 2) for group in stack.groups]
    if sum(sizes) <= BUDGET:
        return list(range(len(sizes)))
    count = max(LEAST, int(len(sizes) * BUDGET / sum(sizes)))
    return spread(count, len(sizes), "pulls").tolist()


def dot_products(deltas: Sequence[Delta]) -> tuple[Tensor, Tensor]:
    """Dot products of deltas, `(n, n)`, and behind the projector on each one's row space, `(n, n, n)`; float64."""
    lows = [delta for delta in deltas if isinstance(delta, LowRank)]
    if len(lows) == len(deltas):
        return _in_factors(lows)
    flats = [delta.flat() for delta in deltas]
    everything = torch.stack([flat.flatten().double() for flat in flats])
    own = []
    for delta in deltas:
        basis = row_space(delta)
        seen = torch.stack([(flat @ basis).flatten().double() for flat in flats])
        own.append(seen @ seen.T)
    return everything @ everything.T, torch.stack(own)


def _in_factors(deltas: Sequence[LowRank]) -> tuple[Tensor, Tensor]:
    # Double, because what is small is squared here; the products are as thin as the ranks.
    ups = torch.cat([delta.up.double() * delta.scale for delta in deltas], 1)
    downs = torch.cat([delta.down.double() for delta in deltas])
    outer, inner = ups.T @ ups, downs @ downs.T
    ranks = [delta.rank for delta in deltas]
    owner = torch.repeat_interleave(torch.arange(len(deltas)), torch.tensor(ranks))
    own, start = [], 0
    for rank in ranks:
        part = slice(start, start + rank)
        seen = inner[:, part] @ _basis(outer[part, part], inner[part, part])
        own.append(_by_owner(outer * (seen @ seen.T), owner, len(deltas)))
        start += rank
    return _by_owner(outer * inner, owner, len(deltas)), torch.stack(own)


def _by_owner(products: Tensor, owner: Tensor, count: int) -> Tensor:
    rows = products.new_zeros(count, len(products)).index_add_(0, owner, products)
    found = products.new_zeros(count, count).index_add_(1, owner, rows)
    return (found + found.T) / 2


def _basis(outer: Tensor, inner: Tensor) -> Tensor:
    """Columns `z` so that `downᵀ z` is an orthonormal basis of the row space of `up @ down`: `(r, r')`.

    With `E = (upᵀup)½` the delta has the row space and the singular values of `E · down`: an up of lower rank than its
    down does not pass on all that the down reads.
    """
    values, vectors = torch.linalg.eigh(outer)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    squares, turned = torch.linalg.eigh(root @ inner @ root)
    is_seen = squares > max(float(squares[-1]), 0.0) * SMALLEST**2 if len(squares) else squares > 0
    return (root @ turned)[:, is_seen] * squares[is_seen].rsqrt()


def row_space(delta: Delta) -> Tensor:
    """An orthonormal basis of the inputs that a delta reads: `(i, r)` float32; `r` is 0 for a delta of zeros."""
    if isinstance(delta, LowRank):
        up, down = delta.up.double(), delta.down.double()
        return (down.T @ _basis(up.T @ up, down @ down.T)).float()
    if isinstance(delta, Kron):
        return torch.kron(_read(delta.a.double()), _read(delta.b.double())).float()
    return _read(delta.flat().double()).float()


def _read(matrix: Tensor) -> Tensor:
    """An orthonormal basis of the row space of a matrix, `(i, r)`."""
    rows, columns = matrix.shape
    gram = matrix.T @ matrix if rows >= columns else matrix @ matrix.T
    lower, failed = torch.linalg.cholesky_ex(gram)
    lengths = lower.diagonal()
    if not int(failed) and float(lengths.min()) > SMALLEST * float(lengths.max()):
        # Of full rank, as most are: a triangle is cheaper than a spectrum.
        return torch.eye(columns, dtype=gram.dtype) if rows >= columns else _solved(lower, matrix).T
    squares, turned = torch.linalg.eigh(gram)
    is_seen = squares > max(float(squares[-1]), 0.0) * SMALLEST**2
    if rows >= columns:
        return turned[:, is_seen]
    return matrix.T @ turned[:, is_seen] * squares[is_seen].rsqrt()


def _solved(lower: Tensor, matrix: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(lower, matrix, upper=False)
