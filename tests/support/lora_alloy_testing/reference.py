"""The formulas as their sources write them: on dense float64 arrays, slow and obvious.

Nothing here is shared with the engine: no factors, no Gram matrices, no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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


def normalize(deltas: Sequence[Array], strengths: Sequence[float]) -> Array:
    """`Σ w Δ / √(Σ w²)`."""
    return weighted_sum(deltas, strengths) / float(np.sqrt(sum(w * w for w in strengths)))


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
        if np.sin(angle) < 1e-4 or cancels([blend, turned[k]], [1 - t, t]):
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


Method = Callable[[Sequence[Array], Sequence[float]], Array]
METHODS: dict[str, Method] = {
    "weighted_sum": weighted_sum,
    "weighted_average": weighted_average,
    "slerp": slerp,
    "karcher": karcher,
    "normalize": normalize,
}
AVERAGES = frozenset({"weighted_average", "slerp", "karcher", "normalize"})


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
    blends = {target: blend(stack, target, method, is_relative) for target in targets}
    merged: dict[str, Array] = {}
    for is_clip in (False, True):
        branch = [target for target in targets if target.startswith("text_encoders.") is is_clip]
        factor = branch_scale(stack, {t: blends[t] for t in branch}, auto_strength, scale_to)
        for target in branch:
            top = [
                v.on(target) * v.deltas[target]
                for v in stack
                if v.preserve and v.deltas.get(target) is not None
            ]
            merged[target] = factor * blends[target] + sum(top, np.zeros_like(blends[target]))
    return merged


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
        method = "slerp" if len(playing) == 2 else "karcher"
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
