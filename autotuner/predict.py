"""Phase 1: what a recipe will do to every LoRA, without a merge.

A combination is scored exactly from dot products that are measured once. Element-wise work is done on some rows of some
targets; the errors there, relative to the LoRAs there, stand for all targets that have such work. A blend does not
depend on the scale it is brought to, so recipes that differ in nothing else share it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import fsum

import torch
from torch import Tensor

from ..analysis.similarity import Measured
from ..core.rng import spread
from ..core.threads import one_thread
from ..lora.factors import Delta
from ..lora.full import Dense
from ..lora.stack import Stack
from ..lora.target import Target
from ..merging.blend import Blend, blend_group
from ..merging.elements import Basis, blended, needs_basis
from ..merging.holding import held_out
from ..merging.methods import METHODS, is_linear, shares_basis
from ..merging.plan import BRANCHES, Facts, branch_of, facts_of
from ..merging.recipe import AUTO, Recipe
from ..merging.scale import branch_factors, scale_of
from ..merging.selection import Relation, choose, smoothed
from ..merging.shared_basis import shared_basis
from ..merging.work import ALL, KNOTS, ORTHOGONALISE, Work
from .pulls import Pulls, row_space
from .scores import Errors

TARGETS = 12  # that element-wise work is scored on
FEW = 3  # at first: most of it falls far behind
ROWS = 16

# What a blend on a target depends on, beside its method and enhancers; scales come afterwards.
_SETTINGS = tuple(
    field.name
    for field in fields(Recipe)
    if field.name
    not in {
        *("method", "strategy_set", "scope", "enhance", "smoothing", "hold_structural"),
        *("global_scale", "auto_strength", "auto_strength_floor"),
    }
)


@dataclass(frozen=True)
class Prediction:
    """What phase 1 knows of a candidate.

    Attributes:
        key: equal for recipes that do the same.
        errors: of the merge.
        is_sampled: whether it is an estimate.
        parts: of an estimate, the errors without one sampled target each; empty where there is only one.
    """

    key: object
    errors: Errors
    is_sampled: bool = False
    parts: tuple[Errors, ...] = ()


@dataclass(frozen=True)
class _Sampled:
    """Some rows of a target: of every delta at strength 1, what each reads, and how many such samples it has."""

    deltas: Sequence[Delta]
    rows: Sequence[Dense]
    bases: Sequence[Tensor]
    strengths: Sequence[float]
    times: float


@dataclass(frozen=True)
class _Held:
    """The stack as some recipes hold it out, and what does not depend on the recipe otherwise.

    `blended` is the energy of what blends on a target, at its strengths, and `is_masked` whether a `conflict_mode`
    makes its blend element-wise.
    """

    stack: Stack
    facts: Facts
    blended: Tensor
    is_masked: tuple[bool, ...]


@dataclass(frozen=True)
class _Blends:
    """The blends of a recipe before any scale.

    Attributes:
        key: equal for blends that do the same.
        is_work: which targets have element-wise work.
        energies: of the blends that are combinations, by target; 0 elsewhere.
        coefficients: by entries of the pulls, `(t, n)`; of the LoRAs themselves where there is work.
        is_fixed: alike, which of them no scale applies to.
        forms: by sampled target, `(3, 2, N)`: of `‖sB + R‖²`, `B` the blend and `R` all else without the LoRA, the
            factors of `s²`, `s` and 1, on the inputs that an entry reads and on all; `(N,)` the entries' energies; and
            the energy of `B`.
    """

    key: object
    is_work: Tensor
    energies: Tensor
    coefficients: Sequence[Tensor]
    is_fixed: Sequence[Tensor]
    forms: Mapping[int, tuple[Tensor, Tensor, float]]


class Predictor:
    """Predicts recipes for one stack.

    Args:
        stack: the stack; structural LoRAs may be in it.
        measured: of its groups.
        pulls: of its groups.
    """

    def __init__(self, stack: Stack, measured: Sequence[Measured], pulls: Sequence[Pulls]) -> None:
        self._stack, self._measured, self._pulls = stack, measured, pulls
        self._branches = tuple(branch_of(one.target) for one in measured)
        self._held: dict[tuple[bool, bool], _Held] = {}
        self._related: dict[tuple[int, float, bool], Mapping[Target, Relation]] = {}
        self._made_before: dict[object, _Blends] = {}
        self._chosen: dict[int, frozenset[int]] = {}
        self._samples: dict[int, _Sampled] = {}
        self._bases: dict[tuple[int, tuple[int, ...], int], Basis] = {}

    def of(self, recipe: Recipe, targets: int = TARGETS) -> Prediction:
        """What a recipe will do; element-wise work is looked at on so many targets."""
        held = self._hold(recipe)
        factors = {name: branch_factors(held.stack, recipe, gram) for name, gram in held.facts.grams.items()}
        with torch.no_grad(), one_thread():
            blends = self._blends(held, recipe, factors, targets)
        scales = {
            name: self._scale(held, recipe, name, gram, blends) for name, gram in held.facts.grams.items()
        }
        exact, key = self._combinations(held, blends, scales)
        if not blends.forms:
            return Prediction(key, Errors.of(exact[0], exact[1], exact[2]))
        return self._estimated(blends, scales, exact, (key, blends.key, tuple(scales.items())))

    def held(self, recipe: Recipe) -> tuple[Stack, Facts]:
        """The stack as a recipe holds it out, and what plans need to know of it."""
        held = self._hold(recipe)
        return held.stack, held.facts

    def _smoothed(self, held: _Held, recipe: Recipe) -> Mapping[Target, Relation]:
        key = id(held), recipe.smoothing, recipe.scope == "global"
        if key not in self._related:
            self._related[key] = smoothed(held.facts.relations, recipe.smoothing, recipe.scope)
        return self._related[key]

    def _hold(self, recipe: Recipe) -> _Held:
        # What `held_out` looks at, beside the stack.
        key = recipe.hold_structural, recipe.method == AUTO
        if key not in self._held:
            stack = held_out(self._stack, recipe)
            energies, masks = [], []
            for one in self._measured:
                blending = [entry for entry in one.entries if not stack.entries[entry].preserve]
                masks.append(any(stack.entries[entry].conflict_mode != ALL for entry in blending))
                diagonal = one.gram.diagonal().tolist()
                energies.append(
                    fsum(
                        stack.entries[entry].strength_on(one.target) ** 2 * energy
                        for entry, energy in zip(one.entries, diagonal, strict=True)
                        if entry in blending
                    )
                )
            blended = torch.tensor(energies, dtype=torch.float64)
            self._held[key] = _Held(stack, facts_of(stack, self._measured), blended, tuple(masks))
        return self._held[key]

    def _blends(
        self, held: _Held, recipe: Recipe, factors: Mapping[str, tuple[float, ...]], targets: int
    ) -> _Blends:
        """The blends of a recipe; those of recipes that blend alike are made once."""
        related = self._smoothed(held, recipe)
        is_named = recipe.method != AUTO and recipe.scope != "additive"
        methods, is_work = [], []
        for one, is_masked in zip(self._measured, held.is_masked, strict=True):
            relation = related[one.target]
            is_alone = relation.count < 2
            methods.append("" if is_alone else recipe.method if is_named else choose(recipe, relation).method)
            is_work.append(
                not is_alone and (bool(recipe.sparsifier) or is_masked or not is_linear(METHODS[methods[-1]]))
            )
        # All else that is done to a stack leaves combinations as they are.
        enhancers = (
            recipe.enhancers if any(is_work) else (ORTHOGONALISE,) * (ORTHOGONALISE in recipe.enhancers)
        )
        settings = tuple(getattr(recipe, name) for name in _SETTINGS)
        preserved = tuple(entry.preserve for entry in held.stack.entries)
        acting = targets if any(is_work) else 0
        shape = settings, enhancers, tuple(methods), tuple(factors.items()), preserved, acting
        if shape not in self._made_before:
            sample = self._sample(recipe, targets)
            self._made_before[shape] = self._blended(held, recipe, factors, related, is_work, sample)
        return self._made_before[shape]

    def _blended(
        self,
        held: _Held,
        recipe: Recipe,
        factors: Mapping[str, tuple[float, ...]],
        related: Mapping[Target, Relation],
        has_work: Sequence[bool],
        sample: frozenset[int],
    ) -> _Blends:
        stack = held.stack
        found: list[Blend | None] = []
        for place, (group, one) in enumerate(zip(stack.groups, self._measured, strict=True)):
            if has_work[place] and place not in sample:
                found.append(None)
                continue
            shares = factors[self._branches[place]]
            found.append(blend_group(stack, recipe, group, one, related[one.target], shares, _unknown))
        forms = {
            place: self._form(stack, place, blend, blend.work)
            for place, blend in enumerate(found)
            if blend is not None and blend.work is not None
        }
        stack.release()
        energies = [0.0 if blend is None or blend.work else blend.norm**2 for blend in found]
        coefficients, is_fixed = [], []
        for pulls in self._pulls:
            none = torch.zeros(len(pulls.entries), dtype=torch.bool)
            blends = [found[place] for place in pulls.places]
            coefficients.append(
                torch.stack(
                    [
                        given if blend is None or blend.work else blend.coefficients
                        for given, blend in zip(pulls.strengths, blends, strict=True)
                    ]
                )
            )
            is_fixed.append(torch.stack([blend.is_preserved if blend else none for blend in blends]))
        key = tuple((place, str(found[place])) for place in forms)
        is_work = torch.tensor([blend is None or blend.work is not None for blend in found])
        return _Blends(
            key, is_work, torch.tensor(energies, dtype=torch.float64), coefficients, is_fixed, forms
        )

    @cached_property
    def _shared(self) -> list[int]:
        return [place for place, one in enumerate(self._measured) if len(one.entries) > 1]

    def _sample(self, recipe: Recipe, targets: int) -> frozenset[int]:
        """Places of the targets that element-wise work is scored on; half as many where each needs a shared basis."""
        shares = recipe.method != AUTO and shares_basis(METHODS[recipe.method])
        return self._spread_over((targets + 1) // 2 if shares or KNOTS in recipe.enhancers else targets)

    def _spread_over(self, count: int) -> frozenset[int]:
        """Places of targets of both branches, with every entry on some."""
        if count in self._chosen:
            return self._chosen[count]
        chosen: set[int] = set()
        for name in BRANCHES:
            some = [place for place in self._shared if self._branches[place] == name]
            wanted = count if name == "model" else (count + 2) // 3
            chosen |= {some[int(at)] for at in spread(wanted, len(some), name)}
        seen = {entry for place in chosen for entry in self._measured[place].entries}
        for place in self._shared:
            if not seen.issuperset(self._measured[place].entries):
                chosen.add(place)
                seen.update(self._measured[place].entries)
        self._chosen[count] = frozenset(chosen)
        return self._chosen[count]

    def _sampled(self, stack: Stack, place: int) -> _Sampled:
        if place not in self._samples:
            group = stack.groups[place]
            deltas = stack.load(group)
            height, is_row = group.shape[0], len(group.shape) == 1
            if is_row:
                rows = [Dense(delta.flat(), 1.0, group.shape) for delta in deltas]
            elif height > ROWS:
                chosen = spread(ROWS, height, str(group.target))
                columns = torch.arange(deltas[0].numel // height)
                shape = (len(chosen), len(columns))
                rows = [Dense(delta.block(chosen, columns), 1.0, shape) for delta in deltas]
            else:
                rows = [Dense(delta.flat(), 1.0, (height, delta.numel // height)) for delta in deltas]
            strengths = [stack.entries[one.entry].strength_on(group.target) for one in group.contributions]
            bases = [torch.eye(1) if is_row else row_space(delta) for delta in deltas]
            times = 1.0 if is_row else height / rows[0].shape[0]
            self._samples[place] = _Sampled(deltas, rows, bases, strengths, times)
        return self._samples[place]

    def _made(self, stack: Stack, place: int, blend: Blend, work: Work) -> Tensor:
        """Some rows of the blend: `(t, i)`."""
        sample, name = self._sampled(stack, place), str(stack.groups[place].target)
        method = METHODS[blend.method]
        if len(stack.groups[place].shape) > 1 and needs_basis(work, method):
            # Its basis is that of whole deltas; the rows are taken afterwards.
            deltas = [sample.deltas[at] for at in work.places]
            limit = int(work.settings["rank_limit"])
            key = place, work.places, limit
            if key not in self._bases:
                self._bases[key] = shared_basis(deltas, limit)
            whole = blended(deltas, work, method, name, basis=self._bases[key])[0]
            height = whole.shape[0]
            rows = spread(ROWS, height, name) if height > ROWS else torch.arange(height)
            return whole.block(rows, torch.arange(whole.numel // height))
        return blended([sample.rows[at] for at in work.places], work, method, name)[0].flat()

    def _form(self, stack: Stack, place: int, blend: Blend, work: Work) -> tuple[Tensor, Tensor, float]:
        sample, made = self._sampled(stack, place), self._made(stack, place, blend, work)
        kept = torch.zeros_like(made)
        for at, factor in enumerate(blend.coefficients.tolist()):
            if factor:
                kept += factor * sample.rows[at].matrix
        forms = torch.zeros(3, 2, len(stack.entries), dtype=torch.float64)
        whole = torch.zeros(len(stack.entries), dtype=torch.float64)
        energy = _dot(made, made) * sample.times
        for at, entry in enumerate(self._measured[place].entries):
            given = sample.strengths[at] * sample.rows[at].matrix
            rest, basis = kept - given, sample.bases[at]
            near, far = made @ basis, rest @ basis
            forms[:, 0, entry] = torch.tensor([_dot(near, near), 2 * _dot(near, far), _dot(far, far)])
            forms[:, 1, entry] = torch.tensor([_dot(made, made), 2 * _dot(made, rest), _dot(rest, rest)])
            whole[entry] = _dot(given, given) * sample.times
        return forms * sample.times, whole, energy

    def _combinations(
        self, held: _Held, found: _Blends, scales: Mapping[str, float]
    ) -> tuple[Tensor, object]:
        """Energies per entry over the targets that are combinations, `(3, N)`, and what tells them apart."""
        energies = torch.zeros(3, len(held.stack.entries), dtype=torch.float64)
        keys = []
        for pulls, given, is_fixed in zip(self._pulls, found.coefficients, found.is_fixed, strict=True):
            is_kept = ~found.is_work[list(pulls.places)]
            scale = torch.tensor(
                [scales[self._branches[place]] for place in pulls.places], dtype=torch.float64
            )
            scale = torch.where(is_fixed | ~is_kept[:, None], 1.0, scale[:, None])
            coefficients = given * scale
            near, far = pulls.energies(coefficients)
            for row, values in enumerate((near, far, pulls.whole)):
                energies[row, list(pulls.entries)] += values[is_kept].sum(0)
            keys.append((coefficients.numpy().round(12) + 0.0).tobytes())
        return energies, (tuple(keys), tuple(found.is_work.tolist()))

    def _estimated(
        self, found: _Blends, scales: Mapping[str, float], exact: Tensor, key: object
    ) -> Prediction:
        parts = []
        for place, (forms, whole, _) in found.forms.items():
            scale = scales[self._branches[place]]
            near, far = (forms[0] * scale**2 + forms[1] * scale + forms[2]).clamp(min=0)
            parts.append(torch.stack([near, far, whole]))
        worked = torch.zeros_like(exact[0])
        for pulls in self._pulls:
            worked[list(pulls.entries)] += pulls.whole[found.is_work[list(pulls.places)]].sum(0)
        total = torch.stack(parts).sum(0)
        without = tuple(_projected(exact, total - part, worked) for part in parts) if len(parts) > 1 else ()
        return Prediction(key, _projected(exact, total, worked), True, without)

    def _scale(self, held: _Held, recipe: Recipe, name: str, gram: Tensor, found: _Blends) -> float:
        """The branch's scale, the norm of element-wise blends estimated by how they shrink what they blend."""
        is_here = torch.tensor([branch == name for branch in self._branches])
        energy = float(found.energies[is_here].sum())
        sampled = [place for place in found.forms if is_here[place]]
        before = float(held.blended[sampled].sum())
        if before > 0:
            after = fsum(found.forms[place][2] for place in sampled)
            energy += after / before * float(held.blended[is_here & found.is_work].sum())
        norms = gram.diagonal().clamp(min=0).sqrt()
        sum_norm = float(gram.sum().clamp(min=0)) ** 0.5
        return scale_of(recipe, norms[norms > 0], energy**0.5, sum_norm)[0]


def _projected(exact: Tensor, sampled: Tensor, worked: Tensor) -> Errors:
    """Errors from exact energies and sampled ones, these brought up to the energy of all targets they stand for."""
    times = torch.where(sampled[2] > 0, worked / sampled[2].clamp(min=1e-300), 0.0)
    own, everything, _ = exact + sampled * times
    return Errors.of(own, everything, exact[2] + torch.where(times > 0, worked, 0.0))


def _dot(one: Tensor, other: Tensor) -> float:
    return float(torch.dot(one.flatten(), other.flatten()))


def _unknown(*_: object) -> tuple[float, float]:
    return 0.0, 0.0
