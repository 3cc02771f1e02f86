"""The element-wise formulas as their sources write them: float64 NumPy, entry by entry, slow and obvious.

Deltas are lists of `(o, c)` arrays. Nothing here is shared with the engine.
"""

from collections.abc import Sequence

import numpy as np

from lora_alloy_testing.reference import vote_of

Array = np.ndarray


def ties(
    deltas: Sequence[Array],
    strengths: Sequence[float],
    vote: str = "auto",
    divisor: str = "mass",
    unit: str = "entry",
) -> Array:
    """Elect, average those that agree; a vote without outcome follows the majority of the target."""
    vote = vote_of(deltas, strengths) if vote == "auto" else vote
    turned = [np.sign(w) * d for w, d in zip(strengths, deltas, strict=True)]
    weights = [abs(w) for w in strengths]
    height, width = deltas[0].shape
    elected = np.zeros((height, width if unit == "entry" else 1))
    for row, column in np.ndindex(*elected.shape):
        ballots = [t[row, column] if unit == "entry" else t[row].sum() for t in turned]
        if vote == "frequency":
            elected[row, column] = np.sign(sum(np.sign(ballot) for ballot in ballots))
        else:
            elected[row, column] = np.sign(sum(w * b for w, b in zip(weights, ballots, strict=True)))
    majority = -1.0 if elected.sum() < 0 else 1.0
    merged = np.zeros((height, width))
    for row, column in np.ndindex(height, width):
        sign = elected[row, column if unit == "entry" else 0] or majority
        agreeing = [
            k
            for k, t in enumerate(turned)
            if np.sign(t[row, column] if unit == "entry" else t[row].sum()) == sign
        ]
        if agreeing:
            above = sum(weights[k] * turned[k][row, column] for k in agreeing)
            below = sum(weights[k] for k in agreeing) if divisor == "mass" else len(agreeing)
            merged[row, column] = above / below
    return merged


def own_entries(deltas: Sequence[Array], strengths: Sequence[float], dominance: float = 1.0) -> list[Array]:
    """For each LoRA, where it alone is the strongest and outweighs all others together."""
    masks = [np.zeros(deltas[0].shape, bool) for _ in deltas]
    for place in np.ndindex(*deltas[0].shape):
        sizes = [abs(w * d[place]) for w, d in zip(strengths, deltas, strict=True)]
        first = max(range(len(sizes)), key=lambda k: sizes[k])
        others = sum(sizes) - sizes[first]
        is_alone = sum(size == sizes[first] for size in sizes) == 1
        masks[first][place] = is_alone and sizes[first] > 0 and sizes[first] >= dominance * others
    return masks


def gram_schmidt(rows: Array) -> Array:
    """The seed's: modified Gram-Schmidt by descending norm, norms restored."""
    norms = np.linalg.norm(rows, axis=1)
    made = rows / norms[:, None]
    order = sorted(range(len(rows)), key=lambda k: -norms[k])
    for place, k in enumerate(order):
        for other in order[:place]:
            made[k] = made[k] - (made[k] @ made[other]) * made[other]
        made[k] = made[k] / np.linalg.norm(made[k])
    return made * norms[:, None]


def lowdin(rows: Array) -> Array:
    """The nearest orthogonal directions, by an SVD of the directions themselves; norms restored."""
    norms = np.linalg.norm(rows, axis=1)
    left, _, right = np.linalg.svd(rows / norms[:, None], full_matrices=False)
    return (left @ right) * norms[:, None]


def star(delta: Array, eta: float) -> Array:
    """The fewest singular values that reach `eta` per cent of their sum, scaled up to that sum."""
    left, values, right = np.linalg.svd(delta, full_matrices=False)
    keep = next(k for k in range(1, len(values) + 1) if values[:k].sum() >= eta / 100 * values.sum() - 1e-12)
    return (left[:, :keep] * values[:keep]) @ right[:keep] * (values.sum() / values[:keep].sum())


def knots_blocks(deltas: Sequence[Array]) -> tuple[Array, list[Array]]:
    """`U Σ` and the blocks of `V`, of a decomposition of all deltas side by side."""
    left, values, right = np.linalg.svd(np.concatenate(deltas, 1), full_matrices=False)
    rank = int((values > 1e-10 * values[0]).sum())
    return left[:, :rank] * values[:rank], np.split(right[:rank], len(deltas), axis=1)
