"""The blend on one target: its coefficients, or the element-wise work that makes it; before any scale."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TypeAlias

import torch
from torch import Tensor

from ..analysis.similarity import Measured, strengths_on
from ..enhance import orthogonalise
from ..lora.factors import Delta
from ..lora.stack import Group, Stack
from .cleaning import tamed
from .density import guessed_density
from .elements import expected
from .methods import METHODS, degree, is_linear, shares_basis, ties
from .methods.spherical import combined_norm
from .recipe import Recipe
from .selection import Relation, choose, taking_part
from .work import ALL, COLUMN_WISE, KNOTS, ORTHOGONALISE, TALL, Work, decided

Expect: TypeAlias = Callable[
    [Sequence[Delta], Work, ModuleType, str, Tensor, Sequence[tuple[Delta, float]]], tuple[float, float]
]
"""What is to be expected of element-wise work, as `elements.expected` says it."""

NOTHING = "nothing to blend here"


def mean_strength(strengths: Tensor) -> float:
    """`S(w) = Σw² / Σ|w|`: 1 for strengths of ±1, `|w|` for one LoRA, and twice for twice the strengths."""
    total = float(strengths.abs().sum())
    return float(strengths.square().sum()) / total if total > 0 else 0.0


@dataclass(frozen=True)
class Blend:
    """What happens on one target before any scale: preserved LoRAs at strength, the others merged.

    Attributes:
        coefficients: `(n,)`; 0 for what element-wise work blends.
        is_preserved: `(n,)`.
        method: the method's name.
        reason: why this one.
        rule: what chose it, without what it went by.
        norm: of the blend, without what is preserved; from a sample, if there is element-wise work.
        across: the dot product of that blend with what is preserved; only of element-wise work.
        work: the element-wise work, or None where the blend is a combination.
        has_cancelled: the LoRAs all but cancel each other, and the method took their average.
    """

    coefficients: Tensor
    is_preserved: Tensor
    method: str
    reason: str
    rule: str
    norm: float
    across: float = 0.0
    work: Work | None = None
    has_cancelled: bool = False


def blend_group(
    stack: Stack,
    recipe: Recipe,
    group: Group,
    one: Measured,
    related: Relation,
    factors: Sequence[float],
    expect: Expect = expected,
) -> Blend:
    """Choose the method for one target and work out its blend, before any scale.

    Args:
        stack: the stack.
        recipe: what is asked.
        group: the target, and what the stack brings to it.
        one: what was measured on it.
        related: how its LoRAs relate, smoothed.
        factors: per entry of the stack, what its strength is multiplied by in the blend.
        expect: tells the norm of element-wise work, and its dot product with what is preserved.
    """
    strengths = strengths_on(stack, one)
    is_preserved = torch.tensor([stack.entries[index].preserve for index in one.entries])
    blend = Blend(torch.where(is_preserved, strengths, 0.0), is_preserved, "weighted_sum", "", "", 0.0)
    places = taking_part(stack, one)
    if len(places) == 0:
        return replace(blend, reason=NOTHING, rule=NOTHING)
    chosen_by = choose(recipe, related)
    method, reason = chosen_by.method, chosen_by.reason
    module = METHODS[method]
    shares = strengths.new_tensor([factors[one.entries[index]] for index in places.tolist()])
    weights = tamed(stack, recipe, group, one.gram.diagonal()[places], strengths[places]) * shares
    blend = replace(blend, method=method, reason=reason, rule=chosen_by.rule)
    if needs_work(stack, recipe, one, places, method):
        work = _work(stack, recipe, group, one, places, weights, module)
        deltas = stack.load(group)
        chosen = [deltas[index] for index in places.tolist()]
        if work.settings["density"] == 0.0:
            found = guessed_density(chosen, recipe.architecture, stack.family, str(one.target))
            work = replace(work, settings={**work.settings, "density": found})
        top = [(deltas[k], float(strengths[k])) for k in torch.nonzero(is_preserved).flatten().tolist()]
        norm, across = expect(chosen, work, module, str(one.target), one.gram.diagonal()[places], top)
        return replace(blend, norm=norm, across=across, work=work, reason=reason + _told(work))
    is_turned = ORTHOGONALISE in recipe.enhancers and _acts(
        ORTHOGONALISE, module, is_row=len(group.shape) == 1
    )
    return _combined(recipe, one, blend, places, weights, is_turned=is_turned)


def needs_work(stack: Stack, recipe: Recipe, one: Measured, places: Tensor, method: str) -> bool:
    """Whether the blend of these entries of a target is element-wise; otherwise it is a combination."""
    if len(places) < 2:
        return False
    modes = (stack.entries[one.entries[index]].conflict_mode for index in places.tolist())
    return bool(recipe.sparsifier) or not is_linear(METHODS[method]) or any(mode != ALL for mode in modes)


def _combined(
    recipe: Recipe, one: Measured, blend: Blend, places: Tensor, weights: Tensor, *, is_turned: bool
) -> Blend:
    """A blend by a linear method, on its own or behind an orthogonalisation: coefficients."""
    module, gram = METHODS[blend.method], one.gram[places][:, places]
    matrix = torch.eye(len(places), dtype=gram.dtype)
    reason = blend.reason
    if is_turned and len(places) > 1:
        matrix = orthogonalise.matrix(gram, symmetric=recipe.symmetric)
        reason += "; orthogonalised"
    turned = matrix @ gram @ matrix.T
    cancels = getattr(module, "cancels", None)
    has_cancelled = len(weights) > 1 and cancels is not None and cancels(turned, weights)
    merged = module.coefficients(turned, weights) @ matrix
    if degree(module, {}) == 0 and recipe.strength_scale == "absolute":
        merged = merged * mean_strength(weights)
    coefficients = blend.coefficients.clone()
    coefficients[places] = merged
    if has_cancelled:
        reason += "; they all but cancel, so their average"
    norm = combined_norm(gram, merged)
    return replace(blend, coefficients=coefficients, norm=norm, has_cancelled=has_cancelled, reason=reason)


def _work(
    stack: Stack,
    recipe: Recipe,
    group: Group,
    one: Measured,
    places: Tensor,
    weights: Tensor,
    module: ModuleType,
) -> Work:
    entries = [stack.entries[one.entries[index]] for index in places.tolist()]
    is_row = len(group.shape) == 1
    sparsifier = recipe.sparsifier or getattr(module, "SPARSIFIER", "")
    enhancers = tuple(name for name in recipe.enhancers if _acts(name, module, is_row=is_row))
    settings = decided(
        dampening=recipe.dampening,
        density=recipe.density_of(sparsifier) if sparsifier else 1.0,
        divisor=recipe.divisor,
        dominance=recipe.dominance,
        rank_limit=recipe.rank_limit,
        symmetric=recipe.symmetric,
        unit="row" if COLUMN_WISE in enhancers else "entry",
        vote=ties.settled_vote(recipe.vote, one.gram[places][:, places], weights),
    )
    gain = 1.0
    if degree(module, settings) == 0 and recipe.strength_scale == "absolute":
        gain = mean_strength(weights)
    return Work(
        places=tuple(places.tolist()),
        strengths=tuple(weights.tolist()),
        contents=tuple(entry.file.sha256 for entry in entries),
        masks=tuple(entry.conflict_mode for entry in entries),
        sparsifier=sparsifier,
        enhancers=enhancers,
        gain=gain,
        scale=1.0,
        seed=recipe.seed,
        settings=settings,
    )


def _acts(name: str, module: ModuleType, *, is_row: bool) -> bool:
    """Whether an enhancer acts: TALL-masks do nothing around a linear method, by law; all others ask for a matrix."""
    if name == TALL:
        return not is_linear(module)
    if name == KNOTS:
        return not is_row and not shares_basis(module)
    return not is_row


def _told(work: Work) -> str:
    parts = []
    if work.sparsifier:
        parts.append(f"{work.sparsifier} to {float(work.settings['density']):.0%}")
    parts += [name.replace("_", " ") for name in work.enhancers]
    return "".join(f"; {part}" for part in parts)
