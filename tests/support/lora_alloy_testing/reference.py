"""The formulas as their sources write them: on dense float64 arrays, slow and obvious.

Nothing here is shared with the engine: no factors, no Gram matrices, no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

Array = np.ndarray
ANTIPODAL = 0.05


def norm(delta: Array) -> float:
    """Frobenius norm of any shape."""
    return float(np.sqrt((delta * delta).sum()))


def dot(first: Array, second: Array) -> float:
    """Frobenius inner product."""
    return float((first * second).sum())


def cosine(first: Array, second: Array) -> float:
    """The cosine of two deltas, 0 where one is zero."""
    bottom = norm(first) * norm(second)
    return dot(first, second) / bottom if bottom > 0 else 0.0


def mean_strength(strengths: Sequence[float]) -> float:
    """`Σw² / Σ|w|`."""
    return sum(w * w for w in strengths) / sum(abs(w) for w in strengths)


def weighted_sum(deltas: Sequence[Array], strengths: Sequence[float]) -> Array:
    """`Σ w Δ`."""
    return sum(w * delta for w, delta in zip(strengths, deltas, strict=True))  # type: ignore[return-value]


def weighted_average(deltas: Sequence[Array], strengths: Sequence[float]) -> Array:
    """`Σ w Δ / Σ |w|`."""
    return weighted_sum(deltas, strengths) / sum(abs(w) for w in strengths)


def expected_norm(deltas: Sequence[Array], strengths: Sequence[float]) -> float:
    """`Σ |w| ‖Δ‖ / Σ |w|`."""
    return sum(abs(w) * norm(d) for w, d in zip(strengths, deltas, strict=True)) / sum(map(abs, strengths))


def cancels(deltas: Sequence[Array], strengths: Sequence[float]) -> bool:
    """Whether less than a twentieth of the parts is left of their average."""
    return norm(weighted_average(deltas, strengths)) < ANTIPODAL * expected_norm(deltas, strengths)


def slerp(deltas: Sequence[Array], strengths: Sequence[float]) -> Array:
    """The seed's iterative form, strongest first; the last step brings the norm to the weighted mean."""
    if cancels(deltas, strengths):
        return weighted_average(deltas, strengths)
    turned = [np.sign(w) * delta for w, delta in zip(strengths, deltas, strict=True)]
    total = sum(turned)
    order = sorted(
        range(len(turned)),
        key=lambda k: (-abs(strengths[k]), -norm(turned[k]), -dot(turned[k], total)),  # type: ignore[arg-type]
    )
    blend, weight = turned[order[0]], abs(strengths[order[0]])
    for k in order[1:]:
        weight += abs(strengths[k])
        t = abs(strengths[k]) / weight
        angle = np.arccos(np.clip(cosine(blend, turned[k]), -1.0, 1.0))
        is_opposite = angle > np.pi / 2 and np.sin(angle) < ANTIPODAL
        if np.sin(angle) < 1e-4 or is_opposite or cancels([blend, turned[k]], [1 - t, t]):
            blend = (1 - t) * blend + t * turned[k]
        else:
            blend = (np.sin((1 - t) * angle) * blend + np.sin(t * angle) * turned[k]) / np.sin(angle)
    return blend * (expected_norm(deltas, strengths) / norm(blend))


def karcher(deltas: Sequence[Array], strengths: Sequence[float]) -> Array:
    """The weighted mean of directions on the sphere, found by exponential and logarithm on dense vectors."""
    if cancels(deltas, strengths) or cancels([delta / norm(delta) for delta in deltas], strengths):
        return weighted_average(deltas, strengths)
    points = [(np.sign(w) * d / norm(d)).ravel() for w, d in zip(strengths, deltas, strict=True)]
    shares = [abs(w) / sum(map(abs, strengths)) for w in strengths]
    mean = sum(share * point for share, point in zip(shares, points, strict=True))
    mean = mean / np.linalg.norm(mean)
    for _ in range(5_000):
        pull = sum(share * logarithm(mean, point) for share, point in zip(shares, points, strict=True))
        length = float(np.linalg.norm(pull))
        if length < 1e-13:
            break
        mean = np.cos(length) * mean + np.sin(length) * pull / length
        mean = mean / np.linalg.norm(mean)
    return mean.reshape(deltas[0].shape) * expected_norm(deltas, strengths)


def logarithm(base: Array, point: Array) -> Array:
    """The tangent at `base` whose geodesic reaches `point` at time 1."""
    across = point - base * float(base @ point)
    length = float(np.linalg.norm(across))
    if length < 1e-15:
        return np.zeros_like(base)
    return across / length * np.arctan2(length, float(base @ point))


DENSITY = 0.5
PLAIN = {
    "density": DENSITY,
    "smoothing": 0.0,
    "compress": "disabled",
}  # fields of a recipe that does as we do


def normalize(deltas: Sequence[Array], strengths: Sequence[float]) -> Array:
    """`Σ w Δ / √(Σ w²)`."""
    return weighted_sum(deltas, strengths) / np.sqrt(sum(w * w for w in strengths))


def trim(delta: Array, density: float) -> Array:
    """The largest magnitudes of the whole target, and those as large as the last of them."""
    keep = max(1, round(density * delta.size))
    return np.where(np.abs(delta) >= np.sort(np.abs(delta).ravel())[-keep], delta, 0.0)


def elect(deltas: Sequence[Array], strengths: Sequence[float], vote: str, *, divisor: str = "mass") -> Array:
    """The seed's second and third step, entry by entry; a vote without outcome goes to the target's majority."""
    turned = np.stack([np.sign(w) * delta for w, delta in zip(strengths, deltas, strict=True)])
    weights = np.abs(np.array(strengths)).reshape(-1, *(1,) * deltas[0].ndim)
    votes = np.sign(turned).sum(0) if vote == "frequency" else (weights * turned).sum(0)
    signs = np.sign(votes)
    majority = -1.0 if signs.sum() < 0 else 1.0
    merged = np.zeros_like(deltas[0])
    for place in np.ndindex(merged.shape):
        sign = signs[place] or majority
        agreeing = [k for k in range(len(deltas)) if np.sign(turned[(k, *place)]) == sign]
        if agreeing:
            below = len(agreeing) if divisor == "count" else sum(abs(strengths[k]) for k in agreeing)
            merged[place] = sum(abs(strengths[k]) * turned[(k, *place)] for k in agreeing) / below
    return merged


def vote_of(deltas: Sequence[Array], strengths: Sequence[float]) -> str:
    """By mass where the LoRAs, at their strengths, differ more than twofold."""
    loud = [abs(w) * norm(delta) for w, delta in zip(strengths, deltas, strict=True)]
    return "total" if max(loud) > 2 * (1 + 1e-6) * min(loud) else "frequency"


def ties(deltas: Sequence[Array], strengths: Sequence[float]) -> Array:
    """Trim, elect, average those that agree."""
    return elect([trim(d, DENSITY) for d in deltas], strengths, vote_of(deltas, strengths))


def consensus(deltas: Sequence[Array], strengths: Sequence[float]) -> Array:
    """Importance, norm, effective rank: the seed's three stages."""
    top = sum(w * delta**3 for w, delta in zip(strengths, deltas, strict=True))
    below = sum(abs(w) * delta**2 for w, delta in zip(strengths, deltas, strict=True))
    merged = np.divide(top, below, out=np.zeros_like(deltas[0]), where=np.asarray(below) > 0)
    if norm(merged) <= ANTIPODAL * expected_norm(deltas, strengths):
        return merged
    flat = (merged * (expected_norm(deltas, strengths) / norm(merged))).reshape(len(merged), -1)
    left, values, right = np.linalg.svd(flat, full_matrices=False)
    shares = values[values > 1e-9 * values[0]] / values.sum()
    rank = max(1, round(float(np.exp(-(shares * np.log(shares)).sum()))))
    return (left[:, :rank] * values[:rank] @ right[:rank]).reshape(merged.shape)


def knots_ties(deltas: Sequence[Array], strengths: Sequence[float]) -> Array:
    """TIES on the right singular blocks of all deltas side by side, brought back by the left ones."""
    flat = [delta.reshape(len(delta), -1) for delta in deltas]
    left, values, right = np.linalg.svd(np.concatenate(flat, 1), full_matrices=False)
    kept = values > 1e-6 * values[0]
    left, values, right = left[:, kept], values[kept], right[kept]
    signs = np.sign(left[np.abs(left).argmax(0), np.arange(left.shape[1])])
    blocks = np.split(right * signs[:, None], len(deltas), 1)
    merged = elect([trim(b, DENSITY) for b in blocks], strengths, vote_of(deltas, strengths))
    return (left * signs * values @ merged).reshape(deltas[0].shape)


Method = Callable[[Sequence[Array], Sequence[float]], Array]
METHODS: dict[str, Method] = {
    "normalize": normalize,
    "ties": ties,
    "consensus": consensus,
    "knots_ties": knots_ties,
    "weighted_sum": weighted_sum,
    "weighted_average": weighted_average,
    "slerp": slerp,
    "karcher": karcher,
}
LINEAR = ("weighted_sum", "weighted_average", "slerp", "karcher", "normalize")
BLENDS = ("weighted_average", "slerp", "karcher")  # what they make of one LoRA twice is that LoRA
AVERAGES = frozenset(METHODS) - {"weighted_sum"}


@dataclass(frozen=True)
class Voice:
    """One LoRA of a stack: its dense deltas by target, and its strengths."""

    deltas: Mapping[str, Array]
    strength: float = 1.0
    clip: float | None = None
    preserve: bool = False

    def on(self, target: str) -> float:
        """The strength that applies to a target."""
        is_clip = target.startswith("text_encoders.")
        return self.clip if is_clip and self.clip is not None else self.strength


def merge(
    stack: Sequence[Voice],
    method: str,
    *,
    auto_strength: bool = True,
    scale_to: str = "none",
    is_relative: bool = False,
) -> dict[str, Array]:
    """A whole merge, target by target: blend, global scale and auto-strength by branch, preserved on top."""
    targets = sorted({target for voice in stack for target in voice.deltas})
    merged: dict[str, Array] = {}
    for is_clip in (False, True):
        branch = [target for target in targets if target.startswith("text_encoders.") is is_clip]
        is_balanced = method == "auto" and scale_to != "none"
        given = balanced(stack, branch, scale_to) if is_balanced else stack
        blends = {target: blend(given, target, method, is_relative) for target in branch}
        # The strengths have brought it to its norm.
        factor = 1.0 if is_balanced else branch_scale(stack, blends, auto_strength, scale_to)
        for target in branch:
            top = [
                v.on(target) * v.deltas[target]
                for v in stack
                if v.preserve and v.deltas.get(target) is not None
            ]
            merged[target] = factor * blends[target] + sum(top, np.zeros_like(blends[target]))
    return merged


def balanced(stack: Sequence[Voice], branch: Sequence[str], scale_to: str) -> list[Voice]:
    """The voices with strengths `w · min(1, s / √n)`, the least `s` that is loud enough: a grid, then a bisection."""

    def total(factors: Sequence[float]) -> float:
        energy = 0.0
        for target in branch:
            parts = [
                f * v.on(target) * v.deltas[target]
                for f, v in zip(factors, stack, strict=True)
                if target in v.deltas and not v.preserve
            ]
            energy += norm(sum(parts, np.zeros(1))) ** 2 if parts else 0.0
        return energy**0.5

    norms = [
        0.0 if v.preserve else sum(norm(v.on(t) * v.deltas[t]) ** 2 for t in branch if t in v.deltas) ** 0.5
        for v in stack
    ]
    loud = [one for one in norms if one > 0]
    if len(loud) < 2:
        return list(stack)
    wanted = float(np.mean(loud)) if scale_to == "mean" else max(loud)
    shares = lambda s: [min(1.0, s / one**0.5) if one > 0 else 1.0 for one in norms]  # noqa: E731
    if total([1.0] * len(stack)) <= wanted:
        return list(stack)
    steps = np.linspace(0.0, max(loud) ** 0.5, 400)
    high = next(s for s in steps if total(shares(s)) >= wanted)
    low = high - steps[1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if total(shares(middle)) >= wanted else (middle, high)
    return [
        replace(v, strength=v.strength * f, clip=None if v.clip is None else v.clip * f)
        if not v.preserve
        else v
        for v, f in zip(stack, shares(high), strict=True)
    ]


def blend(stack: Sequence[Voice], target: str, method: str, is_relative: bool = False) -> Array:
    """What a method makes of one target, at `S(w)` for averaging methods."""
    playing = [
        (voice.deltas[target], voice.on(target))
        for voice in stack
        if not voice.preserve
        and target in voice.deltas
        and voice.on(target) != 0
        and norm(voice.deltas[target])
    ]
    if not playing:
        return np.zeros_like(next(voice.deltas[target] for voice in stack if target in voice.deltas))
    deltas, strengths = [one for one, _ in playing], [w for _, w in playing]
    if len(playing) == 1:
        return weighted_sum(deltas, strengths)
    if method == "auto":
        method = "weighted_sum"
    made = METHODS[method](deltas, strengths)
    is_scaled = method in AVERAGES and not is_relative
    return made * mean_strength(strengths) if is_scaled else made


def branch_scale(
    stack: Sequence[Voice], blends: Mapping[str, Array], auto_strength: bool, scale_to: str
) -> float:
    """Global scale, no louder than the plain sum, then the seed's energy rule; preserved LoRAs not counted."""
    energies, plain = [], {target: np.zeros_like(delta) for target, delta in blends.items()}
    for voice in stack:
        own = {t: voice.on(t) * d for t, d in voice.deltas.items() if t in blends and not voice.preserve}
        energies.append(np.sqrt(sum(norm(delta) ** 2 for delta in own.values())))
        for target, delta in own.items():
            plain[target] = plain[target] + delta
    energies = [energy for energy in energies if energy > 0]
    loud = float(np.sqrt(sum(norm(delta) ** 2 for delta in blends.values())))
    if len(energies) < 2 or loud == 0:
        return 1.0
    factor = 1.0
    if scale_to != "none":
        wanted = float(np.mean(energies)) if scale_to == "mean" else max(energies)
        together = float(np.sqrt(sum(norm(delta) ** 2 for delta in plain.values())))
        factor = min(wanted, together) / loud
    if auto_strength:
        factor *= min(1.0, max(energies) / (loud * factor))
    return factor


def retention(merged: Mapping[str, Array], voice: Voice, targets: Sequence[str] | None = None) -> float:
    """`⟨M, wΔ⟩ / ‖wΔ‖²` over all targets of one LoRA, or over some."""
    own = {t: voice.on(t) * d for t, d in voice.deltas.items() if targets is None or t in targets}
    return sum(dot(merged[t], d) for t, d in own.items()) / sum(norm(d) ** 2 for d in own.values())
