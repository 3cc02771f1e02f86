"""Runs the element-wise work of a plan on one target, tile by tile.

What needs the whole target, such as a threshold or a norm, is a pass of its own whose parts are added up in the
order of the rows. Nothing is kept between passes but such sums: the tiles are made anew, which costs less than the
memory of whole deltas (`design.md` §1.1, §2).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..analysis.similarity import dot
from ..core.device import emptied, full_precision, is_refusal
from ..core.log import log
from ..core.quantile import magnitude_thresholds
from ..core.rng import uniform
from ..enhance import orthogonalise, tall_masks
from ..lora.factors import Delta, LowRank
from ..lora.full import Dense
from ..sparsify import SPARSIFIERS
from .masks import masked
from .methods import is_linear, shares_basis
from .shared_basis import shared_basis
from .tiles import ENTRIES, Tiles
from .work import ALL, COLUMN_WISE, KNOTS, ORTHOGONALISE, TALL, Work

SAMPLE = 64  # rows that settle the norm of a result to a per cent

Restore = Callable[[Tensor], Tensor]


def blended(
    deltas: Sequence[Delta],
    work: Work,
    method: ModuleType,
    target: str,
    device: torch.device | str = "cpu",
    multiplied: Callable[[], Sequence[Delta]] | None = None,
) -> tuple[Delta, float]:
    """The blend of one target.

    Args:
        deltas: of the blend, at strength 1, in the order of the work's strengths.
        work: what is done.
        method: the merge method's module.
        target: its name; chance is drawn by it.
        device: where it is done: on what is no CPU whole targets at a time, in tiles if they do not fit, and on the
            CPU if those do not either.
        multiplied: the same deltas, multiplied out by whoever kept them; asked only on the CPU, and if that helps.

    Returns:
        The result, float32, scale 1: dense, or low-rank where the method gives factors; and the relative error of
        what the shared basis of KnOTS could not hold.
    """
    place = torch.device(device)
    ways = [(place, False)]
    if place.type != "cpu":
        wholes = [(place, True)] if _is_entrywise(work, method) else []
        ways = [*wholes, (place, False), (torch.device("cpu"), False)]
    for where, is_whole in ways[:-1]:
        try:
            with full_precision(where):
                return _blended(deltas, work, method, target, where, is_whole)
        except RuntimeError as problem:
            if not is_refusal(problem):
                raise
            what = "whole" if is_whole else "in tiles"
            log.info("%s could not be merged %s on %s: %s", target, what, where, str(problem)[:200])
        emptied(where)  # behind the handler, which holds on to the failed call's tensors
    where, is_whole = ways[-1]
    return _blended(deltas, work, method, target, where, is_whole, multiplied)


def _is_entrywise(work: Work, method: ModuleType) -> bool:
    """Whether each entry is worked out by itself: then whole targets give the bits that their tiles give."""
    sums = {COLUMN_WISE, ORTHOGONALISE} & set(work.enhancers)
    return not sums and not is_linear(method)


def _blended(
    deltas: Sequence[Delta],
    work: Work,
    method: ModuleType,
    target: str,
    device: torch.device,
    is_whole: bool,
    multiplied: Callable[[], Sequence[Delta]] | None = None,
) -> tuple[Delta, float]:
    shape = deltas[0].shape
    if len(shape) > 1 and (KNOTS in work.enhancers or shares_basis(method)):
        basis, blocks, lost = shared_basis(deltas, int(work.settings["rank_limit"]))
        inner = [Dense(block, 1.0, tuple(block.shape)) for block in blocks]
        merged = _Run(Tiles(inner, device, is_whole=is_whole), work, method, target).result()
        down = merged.matrix if isinstance(merged, Dense) else merged.flat()
        return LowRank(basis, down, 1.0, shape), lost
    if multiplied is not None:
        deltas = multiplied()
    made = _Run(Tiles(deltas, device, is_whole=is_whole), work, method, target).result()
    if isinstance(made, LowRank):
        return LowRank(made.up, made.down, 1.0, shape), 0.0
    matrix = made.matrix
    return Dense(matrix if len(shape) > 1 else matrix.reshape(-1, 1), 1.0, shape), 0.0


def expected(
    deltas: Sequence[Delta],
    work: Work,
    method: ModuleType,
    target: str,
    energies: Tensor,
    top: Sequence[tuple[Delta, float]],
) -> tuple[float, float]:
    """The norm that a blend will have, and its dot product with what is added on top of it.

    From some rows of it; exact where the target has no more than those.

    Args:
        deltas: as for `blended`.
        work: as for `blended`.
        method: as for `blended`.
        target: as for `blended`.
        energies: `(n,)` float64, squared norms of the deltas.
        top: the deltas that are added on top, and what each is multiplied by.
    """
    shape, share = deltas[0].shape, 0.0
    squares = torch.tensor(work.strengths, dtype=torch.float64).square()
    some, above = deltas, [delta for delta, _ in top]
    if not (len(shape) == 1 or shape[0] <= SAMPLE or KNOTS in work.enhancers or shares_basis(method)):
        rows = _typical_rows(deltas, squares)
        columns = torch.arange(deltas[0].numel // shape[0])
        sizes = (len(rows), len(columns))
        some, above = (
            [Dense(one.block(rows, columns), 1.0, sizes) for one in whole] for whole in (deltas, above)
        )
        sampled = torch.tensor([norm_of(one) ** 2 for one in some], dtype=torch.float64)
        # What these rows have of the LoRAs' energy tells what they have of the result's.
        share = float(squares @ sampled) / float(squares @ energies)
    if share <= 0.0:
        some, above, share = deltas, [delta for delta, _ in top], 1.0
    made = blended(some, work, method, target)[0]
    across = sum(factor * dot(made, one) for one, (_, factor) in zip(above, top, strict=True))
    return norm_of(made) / share**0.5, across / share


def _typical_rows(deltas: Sequence[Delta], squares: Tensor) -> Tensor:
    """Rows that stand for all: every so many-th of them, in the order of how much the LoRAs change them."""
    energy = sum(float(square) * _row_energies(one) for square, one in zip(squares, deltas, strict=True))
    assert isinstance(energy, Tensor)
    step = len(energy) / SAMPLE
    places = ((torch.arange(SAMPLE, dtype=torch.float64) + 0.5) * step).long()
    return torch.sort(energy, stable=True).indices[places].sort().values


def _row_energies(delta: Delta) -> Tensor:
    """The squared norm of every row, `(o,)` float64."""
    if isinstance(delta, LowRank):
        up, down = delta.up.float(), delta.down.float()
        return ((up @ (down @ down.T)) * up).sum(1).double() * delta.scale**2
    return delta.flat().double().square().sum(1)


def norm_of(delta: Delta) -> float:
    """The Frobenius norm of a delta in float32, scale 1."""
    if isinstance(delta, LowRank):
        products = (delta.up.T @ delta.up).double() * (delta.down @ delta.down.T).double()
        return float(products.sum().clamp(min=0).sqrt())
    if not isinstance(delta, Dense):
        return float(torch.linalg.vector_norm(delta.flat(), dtype=torch.float64))
    energy = 0.0
    for rows in delta.matrix.split(max(1, ENTRIES // max(delta.matrix.shape[1], 1))):
        energy += float(torch.linalg.vector_norm(rows, dtype=torch.float64)) ** 2
    return energy**0.5 * abs(delta.scale)


class _Run:
    """One target's work, with the statistics that its steps need."""

    def __init__(self, tiles: Tiles, work: Work, method: ModuleType, target: str) -> None:
        self._tiles, self._work, self._method, self._target = tiles, work, method, target
        self._strengths = torch.tensor(work.strengths).to(tiles.device)
        self._thresholds: Sequence[float] = ()
        self._matrix: Tensor | None = None
        self._sparsify = SPARSIFIERS[work.sparsifier].sparsify if work.sparsifier else None
        named = signature(self._sparsify).parameters if self._sparsify else ()
        self._draws, self._contests = "uniform" in named, "contested" in named
        if "threshold" in named:
            self._thresholds = self._trimmed_at()
        if ORTHOGONALISE in work.enhancers and tiles.count > 1 and not tiles.is_row:
            self._matrix = orthogonalise.matrix(self._gram(), **_taken(orthogonalise.matrix, work.settings))

    def result(self) -> LowRank | Dense:
        """The blend, `(rows, columns)` or factors of it."""
        gram = self._gram() if is_linear(self._method) or _asks(self._method, "norms") else None
        merge = self._merger(gram)
        made = torch.empty(self._tiles.rows, self._tiles.columns)
        for start, tile, _ in self._prepared():
            made[start : start + tile.shape[1]] = merge(tile).to(made.device)
        finished = self._finished(made, gram)
        if isinstance(finished, LowRank) and TALL not in self._work.enhancers:
            return finished.times(self._work.gain)
        # Nobody else has this memory, and another copy of a whole target is not made.
        made = finished.matrix if isinstance(finished, Dense) else finished.flat()
        made.mul_(self._work.gain)
        if TALL in self._work.enhancers:
            for start, tile, restore in self._prepared():
                owned = restore(torch.zeros_like(tile[0])).mul_(self._work.scale)
                made[start : start + tile.shape[1]] += owned.to(made.device)
        return Dense(made, 1.0, tuple(made.shape))

    def _merger(self, gram: Tensor | None) -> Callable[[Tensor], Tensor]:
        strengths, work = self._strengths, self._work
        if is_linear(self._method):
            assert gram is not None
            weights = torch.tensor(work.strengths).double()
            coefficients = _coefficients(self._method, gram, weights, work.settings).float()
            return lambda tile: torch.einsum("n,ntc->tc", coefficients.to(tile.device), tile)
        given = _taken(self._method.merge, work.settings)
        if hasattr(self._method, "partial"):
            asked = _taken(self._method.partial, work.settings)
            parts = (self._method.partial(tile, strengths, **asked) for _, tile, _ in self._prepared())
            given["statistics"] = sum(parts)
        return lambda tile: self._method.merge(tile, strengths, **given)

    def _finished(self, made: Tensor, gram: Tensor | None) -> LowRank | Dense:
        if not hasattr(self._method, "finish"):
            return Dense(made, 1.0, tuple(made.shape))
        given = _taken(self._method.finish, self._work.settings)
        if gram is not None:
            given["norms"] = gram.diagonal().clamp(min=0).sqrt()
        done = self._method.finish(made, self._strengths, **given)
        shape = tuple(made.shape)
        return Dense(done, 1.0, shape) if isinstance(done, Tensor) else LowRank(done[0], done[1], 1.0, shape)

    def _trimmed_at(self) -> Sequence[float]:
        size = self._tiles.rows * self._tiles.columns
        keep = max(1, round(float(self._work.settings["density"]) * size))
        return magnitude_thresholds(lambda: (tile for _, tile in self._masked()), size, keep)

    def _gram(self) -> Tensor:
        """Dot products of the deltas as they enter the method, `(n, n)` float64."""
        gram = torch.zeros(self._tiles.count, self._tiles.count, dtype=torch.float64)
        for _, tile, _ in self._prepared():
            for part in tile.split(self._tiles.height, 1):
                flat = part.reshape(len(tile), -1)
                gram += (flat @ flat.T).cpu().double()
        return (gram + gram.T) / 2

    def _masked(self) -> Iterator[tuple[int, Tensor]]:
        modes = self._work.masks
        is_open = all(mode == ALL for mode in modes)
        by_row = COLUMN_WISE in self._work.enhancers and not self._tiles.is_row
        for start, tile in zip(self._tiles.starts(), self._tiles.walk(), strict=True):
            yield start, tile if is_open else masked(tile, self._strengths, modes, by_row=by_row)

    def _prepared(self) -> Iterator[tuple[int, Tensor, Restore]]:
        """The tiles as they enter the method, and what gives back what was taken out of them."""
        settings = _taken(tall_masks.enhance, self._work.settings)
        for start, tile in self._masked():
            if self._sparsify is not None:
                tile = self._sparse(start, tile)
            restore: Restore = _nothing
            if TALL in self._work.enhancers:
                tile, restore = tall_masks.enhance(tile, self._strengths, **settings)
            if self._matrix is not None:
                tile = torch.einsum("jn,ntc->jtc", self._matrix.float().to(tile.device), tile)
            yield start, tile, restore

    def _sparse(self, start: int, tile: Tensor) -> Tensor:
        assert self._sparsify is not None
        given = _taken(self._sparsify, self._work.settings)
        if self._contests:
            pushes = torch.sign(tile) * torch.sign(self._strengths)[:, None, None]
            given["contested"] = (pushes > 0).any(0) & (pushes < 0).any(0)
        for place, delta in enumerate(tile):
            if self._thresholds:
                given["threshold"] = self._thresholds[place]
            if self._draws:
                given["uniform"] = uniform(
                    (delta.shape[0], delta.shape[1]),
                    seed=self._work.seed,
                    content=self._work.contents[place],
                    target=self._target,
                    start=start,
                    device=delta.device,
                )
            delta.copy_(self._sparsify(delta, **given))  # tiles are ours to write into
        return tile


def _coefficients(method: ModuleType, gram: Tensor, strengths: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """A linear method's coefficients; what is all zero by now takes no part."""
    active = torch.nonzero(gram.diagonal() > 0).flatten()
    coefficients = torch.zeros_like(strengths)
    if len(active):
        given = _taken(method.coefficients, settings)
        coefficients[active] = method.coefficients(gram[active][:, active], strengths[active], **given)
    return coefficients


def _taken(function: Callable[..., object], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a function has parameters for."""
    named = signature(function).parameters
    return {name: value for name, value in settings.items() if name in named}


def _asks(method: ModuleType, name: str) -> bool:
    functions = (getattr(method, verb, None) for verb in ("merge", "finish"))
    return any(function is not None and name in signature(function).parameters for function in functions)


def _nothing(merged: Tensor) -> Tensor:
    return merged
