"""A whole blend of one target, step by step, on dense float64 arrays: masks, sparsifier, enhancers, method.

The order is that of `merging/work.py`, the formulas are those of their sources. Nothing is shared with the engine but
the numbers that are drawn by chance, which a reference cannot know.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lora_alloy.core.rng import uniform
from lora_alloy_testing import dense_formulas, reference

Array = np.ndarray
BY_COUNT = ("ties", "knots_ties")
SHARED = 256  # the rank of KnOTS' basis


@dataclass(frozen=True)
class Composition:
    """What is done: the names of a recipe, and its numbers."""

    method: str
    sparsifier: str = ""
    enhancers: Sequence[str] = ()
    density: float = 0.6
    dampening: float = 0.0
    dominance: float = 1.0
    divisor: str = "mass"
    seed: int = 0


def composed(
    how: Composition,
    deltas: Sequence[Array],
    strengths: Sequence[float],
    modes: Sequence[str],
    contents: Sequence[str],
    target: str,
) -> Array:
    """The blend of `(o, i)` deltas, at `S(w)` for averaging methods.

    Args:
        how: what is done.
        deltas: at strength 1.
        strengths: one for each, none 0.
        modes: the conflict mode of each.
        contents: what the chance of each is drawn by.
        target: what it is drawn for.
    """
    is_linear = how.method in reference.LINEAR
    is_masked = any(mode != "all" for mode in modes)
    vote, basis = reference.vote_of(deltas, strengths), None
    is_shared = how.method == "knots_ties" or "knots" in how.enhancers
    # A combination of whole blocks is that of the deltas: there is nothing for the basis to do.
    if is_shared and not (is_linear and not how.sparsifier and not is_masked):
        basis, deltas = shared(deltas)
    by_row = "column_wise" in how.enhancers
    deltas = masked(deltas, strengths, modes, by_row=by_row)
    draws = [
        uniform(deltas[0].shape, seed=how.seed, content=one, target=target, start=0).double().numpy()
        for one in contents
    ]
    deltas = sparsified(how, deltas, strengths, draws)
    own = np.zeros(deltas[0].shape)
    if "tall_masks" in how.enhancers and not is_linear:
        masks = dense_formulas.own_entries(deltas, strengths, how.dominance)
        own = sum(w * d * mask for w, d, mask in zip(strengths, deltas, masks, strict=True))  # type: ignore[assignment]
        deltas = [np.where(mask, 0.0, delta) for delta, mask in zip(deltas, masks, strict=True)]
    if "orthogonalise" in how.enhancers:
        rows = np.stack([delta.ravel() for delta in deltas])
        deltas = [row.reshape(deltas[0].shape) for row in dense_formulas.gram_schmidt(rows)]
    if how.method in BY_COUNT:
        made = dense_formulas.ties(deltas, strengths, vote, how.divisor, "row" if by_row else "entry")
    else:
        made = reference.METHODS[how.method](deltas, strengths)
    if how.method != "weighted_sum" and not (how.method in BY_COUNT and how.divisor == "count"):
        made = made * reference.mean_strength(strengths)
    return made + own if basis is None else basis @ (made + own)


def shared(deltas: Sequence[Array]) -> tuple[Array, list[Array]]:
    """KnOTS' basis with its singular values, and the right blocks; every direction's largest entry is positive."""
    left, values, right = np.linalg.svd(np.concatenate(deltas, 1), full_matrices=False)
    rank = min(SHARED, int((values > 1e-6 * values[0]).sum()))
    left, values, right = left[:, :rank], values[:rank], right[:rank]
    signs = np.sign(left[np.abs(left).argmax(0), np.arange(rank)])
    return left * signs * values, np.split(right * signs[:, None], len(deltas), 1)


def masked(
    deltas: Sequence[Array], strengths: Sequence[float], modes: Sequence[str], *, by_row: bool
) -> list[Array]:
    """Each where its mode lets it act: with the sign of what all push together, or not with it."""
    pushes = [w * delta for w, delta in zip(strengths, deltas, strict=True)]
    votes = [push.sum(1, keepdims=True) if by_row else push for push in pushes]
    elected = np.sign(sum(votes))
    found = []
    for delta, push, mode in zip(deltas, pushes, modes, strict=True):
        agrees = np.sign(push) * elected > 0
        kept = {"all": np.ones_like(agrees), "low_conflict": agrees, "high_conflict": ~agrees}[mode]
        found.append(np.where(kept, delta, 0.0))
    return found


def sparsified(
    how: Composition, deltas: Sequence[Array], strengths: Sequence[float], draws: Sequence[Array]
) -> list[Array]:
    """Trimmed, dropped out, or as they are."""
    name = how.sparsifier or ("trim" if how.method in BY_COUNT else "")
    if not name:
        return list(deltas)
    if name == "trim":
        return [reference.trim(delta, how.density) for delta in deltas]
    turned = [np.sign(w) * delta for w, delta in zip(strengths, deltas, strict=True)]
    contested = np.any([one > 0 for one in turned], 0) & np.any([one < 0 for one in turned], 0)
    found = []
    for delta, drawn in zip(deltas, draws, strict=True):
        if name.startswith("dare"):
            thinned = np.where(drawn < how.density, delta / how.density ** (1 - how.dampening), 0.0)
        else:
            width = min(0.3, 2 * min(how.density, 1 - how.density))
            ranks = np.abs(delta).argsort(1, kind="stable").argsort(1)
            chance = how.density - width / 2 + width * (ranks + 0.5) / delta.shape[1]
            thinned = np.where(drawn < chance, delta / chance, 0.0)
        found.append(np.where(contested, thinned, delta) if name.endswith("conflict") else thinned)
    return found
