"""The plan: one frozen record per target, decided before anything is merged.

It is what the report prints, what is stored and what replays; execution decides nothing (`design.md` §1.2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..analysis.measure import mute_notes
from ..analysis.similarity import Measured
from ..core.errors import RecipeError
from ..core.jsonvalues import as_count, as_flag, as_list, as_number, as_object, as_text
from ..core.progress import Progress, silent, told
from ..core.threads import one_thread
from ..lora.stack import Entry, Stack
from ..lora.target import Part, Target
from .blend import Blend, blend_group
from .holding import held_notes, held_out
from .methods.spherical import combined_norm
from .recipe import Recipe
from .scale import Branch, branch_factors, branch_gram, branch_scale
from .selection import Relation, relation, smoothed
from .work import Work

VERSION = 2
BRANCHES = ("model", "clip")


@dataclass(frozen=True)
class Source:
    """One entry of the stack as the plan knows it.

    `held` is why it is preserved though nobody asked for it; empty if somebody did, or it is blended.
    """

    label: str
    sha256: str
    strength: float
    clip_strength: float
    preserve: bool
    conflict_mode: str = "all"
    key_filter: str = "all"
    held: str = ""

    @property
    def is_asked(self) -> bool:
        """Whether it is preserved because the user said so."""
        return self.preserve and not self.held


@dataclass(frozen=True)
class TargetPlan:
    """What happens on one target.

    Attributes:
        target: the target.
        shape: its own.
        entries: the sources that touch it, in the order of the coefficients.
        coefficients: what each delta, at strength 1, is multiplied by; scales are in them. 0 for what the work
            blends.
        method: the merge method of the blend.
        norm: the Frobenius norm of the result; expected from a sample, if there is work.
        reason: why this method, in words.
        rule: the reason without what is of this target alone: what reports count.
        work: what is done element by element, with scales in it; None for a combination.
    """

    target: Target
    shape: tuple[int, ...]
    entries: tuple[int, ...]
    coefficients: tuple[float, ...]
    method: str
    norm: float
    reason: str
    rule: str = ""
    work: Work | None = None


@dataclass(frozen=True)
class Plan:
    """A whole merge, decided.

    Attributes:
        recipe: what was asked.
        sources: the entries, in the user's order.
        family: the key of the model family, or None.
        targets: one record per target, in the order of execution.
        scales: of the model and of the text encoders, with what they were made of.
        notes: what the user should know.
        inner: by the label of an entry that a formula makes, the plan that makes it.
        leaves: the stack that a formula counts, in the user's order; empty without a formula.
    """

    recipe: Recipe
    sources: tuple[Source, ...]
    family: str | None
    targets: tuple[TargetPlan, ...]
    scales: tuple[Branch, ...]
    notes: tuple[str, ...]
    inner: Mapping[str, "Plan"] = field(default_factory=dict)
    leaves: tuple[Source, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values; `from_json` gives back an equal plan."""
        return {
            "version": VERSION,
            **asdict(replace(self, inner={})),
            "recipe": self.recipe.to_json(),
            "inner": {label: plan.to_json() for label, plan in self.inner.items()},
        }

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> "Plan":
        """A plan from JSON values.

        Raises:
            RecipeError: they are not a plan of this version.
        """
        if given.get("version") != VERSION:
            raise RecipeError(
                f"The plan is of version {given.get('version')!r:.60}; this program reads {VERSION}."
            )
        try:
            return Plan(
                recipe=Recipe.from_json(as_object(given["recipe"])),
                sources=tuple(map(source_from_json, as_list(given["sources"]))),
                family=None if given["family"] is None else as_text(given["family"]),
                targets=tuple(map(_target_plan, as_list(given["targets"]))),
                scales=tuple(map(_branch, as_list(given["scales"]))),
                notes=tuple(map(as_text, as_list(given["notes"]))),
                inner={
                    label: Plan.from_json(as_object(plan))
                    for label, plan in as_object(given.get("inner", {})).items()
                },
                leaves=tuple(map(source_from_json, as_list(given.get("leaves", [])))),
            )
        except KeyError as problem:
            raise RecipeError(f"The plan is not complete: {problem} is missing; make it again.") from None
        except (TypeError, ValueError) as problem:
            raise RecipeError(f"The plan is damaged: {str(problem)[:200]}; make it again.") from None


def source_from_json(given: object) -> Source:
    """A source from JSON values.

    Raises:
        KeyError: a field is missing.
        ValueError: a value is of another kind.
    """
    fields = as_object(given)
    return Source(
        label=as_text(fields["label"]),
        sha256=as_text(fields["sha256"]),
        strength=as_number(fields["strength"]),
        clip_strength=as_number(fields["clip_strength"]),
        preserve=as_flag(fields["preserve"]),
        conflict_mode=as_text(fields.get("conflict_mode", "all")),
        key_filter=as_text(fields.get("key_filter", "all")),
        held=as_text(fields.get("held", "")),
    )


def _target_plan(given: object) -> TargetPlan:
    fields = as_object(given)
    entries = tuple(map(as_count, as_list(fields["entries"])))
    coefficients = tuple(map(as_number, as_list(fields["coefficients"])))
    if len(entries) != len(coefficients):
        raise ValueError("a target has not one coefficient an entry")
    work = None if fields["work"] is None else Work.from_json(fields["work"])
    if work and max(work.places) >= len(entries):
        raise ValueError("the work on a target is for more LoRAs than touch it")
    return TargetPlan(
        target=_target(as_object(fields["target"])),
        shape=tuple(map(as_count, as_list(fields["shape"]))),
        entries=entries,
        coefficients=coefficients,
        method=as_text(fields["method"]),
        norm=as_number(fields["norm"]),
        reason=as_text(fields["reason"]),
        rule=as_text(fields.get("rule", "")),
        work=work,
    )


def _target(fields: Mapping[str, Any]) -> Target:
    part = fields["part"]
    if part is not None:
        part = Part(*(as_count(as_object(part)[name]) for name in ("axis", "start", "length")))
    return Target(as_text(fields["weight"]), part)


def _branch(given: object) -> Branch:
    fields = as_object(given)
    return Branch(
        name=as_text(fields["name"]),
        scale=as_number(fields["scale"]),
        factors=tuple(map(as_number, as_list(fields["factors"]))),
        energies=tuple(map(as_number, as_list(fields["energies"]))),
        blend_norm=as_number(fields["blend_norm"]),
        sum_norm=as_number(fields["sum_norm"]),
        reason=as_text(fields["reason"]),
    )


@dataclass(frozen=True)
class Facts:
    """What all plans of one stack have in common.

    Attributes:
        relations: how the LoRAs of every target relate.
        grams: by branch, the dot products of the entries at their strengths.
    """

    relations: Mapping[Target, Relation]
    grams: Mapping[str, Tensor]


def facts_of(stack: Stack, measured: Sequence[Measured]) -> Facts:
    """What plans need to know of a stack; what it holds out is marked as preserved by then."""
    names = [name for name in BRANCHES if any(one.target.is_clip == (name == "clip") for one in measured)]
    return Facts(
        {one.target: relation(stack, one) for one in measured},
        {name: branch_gram(name, stack, measured) for name in names},
    )


def make_plan(
    stack: Stack,
    recipe: Recipe,
    measured: Sequence[Measured],
    progress: Progress = silent,
    facts: Facts | None = None,
) -> Plan:
    """Decide the merge of a stack from what was measured on it.

    Args:
        stack: the entries and their groups.
        recipe: what is asked.
        measured: one record per group, in their order.
        progress: told after every target, where element-wise work is sampled.
        facts: of this stack, as it is held out by this recipe; None works them out.
    """
    stack = held_out(stack, recipe)
    known = facts or facts_of(stack, measured)
    related, grams = smoothed(known.relations, recipe.smoothing, recipe.scope), known.grams
    factors = {name: branch_factors(stack, recipe, gram) for name, gram in grams.items()}
    pairs = zip(stack.walk(), measured, strict=True)
    with torch.no_grad(), one_thread():
        blends = [
            blend_group(stack, recipe, group, one, related[one.target], factors[branch_of(one.target)])
            for group, one in told(pairs, len(measured), "plan", progress)
        ]
    scales = tuple(
        branch_scale(name, recipe, gram, factors[name], measured, blends) for name, gram in grams.items()
    )
    by_branch = {branch.name: branch.scale for branch in scales}
    targets = []
    for group, one, blend in zip(stack.groups, measured, blends, strict=True):
        scale = by_branch[branch_of(one.target)]
        coefficients = torch.where(blend.is_preserved, blend.coefficients, blend.coefficients * scale)
        targets.append(
            TargetPlan(
                target=group.target,
                shape=group.shape,
                entries=one.entries,
                coefficients=tuple(coefficients.tolist()),
                method=blend.method,
                norm=_norm(blend, scale, combined_norm(one.gram, coefficients)),
                reason=blend.reason,
                rule=blend.rule,
                work=_scaled(blend.work, scale),
            )
        )
    return Plan(
        recipe=recipe,
        sources=sources_of(stack.entries),
        family=stack.family.key if stack.family else None,
        targets=tuple(targets),
        scales=scales,
        notes=(
            *held_notes(stack.entries),
            *stack.notes,
            *mute_notes(stack, measured),
            *_cancelled(targets, blends),
        ),
    )


def _norm(blend: Blend, scale: float, combined: float) -> float:
    """Of the result on a target: of the combination alone, or with the element-wise work below it."""
    if blend.work is None:
        return combined
    return max((blend.norm * scale) ** 2 + 2 * scale * blend.across + combined**2, 0.0) ** 0.5


def branch_of(target: Target) -> str:
    """The branch that a target belongs to: `model` or `clip`."""
    return "clip" if target.is_clip else "model"


def _scaled(work: Work | None, scale: float) -> Work | None:
    return work and replace(work, gain=work.gain * scale, scale=work.scale * scale)


def _cancelled(targets: Sequence[TargetPlan], blends: Sequence[Blend]) -> list[str]:
    found = [target for target, blend in zip(targets, blends, strict=True) if blend.has_cancelled]
    if not found:
        return []
    return [
        f"On {len(found)} of {len(targets)} targets, the first {found[0].target}, the LoRAs all but cancel each"
        f" other: {found[0].method} has no direction to keep there, and their weighted average is taken."
    ]


def is_for(plan: Plan, stack: Stack) -> bool:
    """Whether a plan was made for these files, strengths and targets; what the files are called is free."""
    made, given = (
        [replace(one, label="", preserve=one.is_asked, held="") for one in sources]
        for sources in (plan.sources, sources_of(stack.entries))
    )
    groups = [
        (group.target, group.shape, tuple(one.entry for one in group.contributions)) for group in stack.groups
    ]
    return made == given and groups == [(one.target, one.shape, one.entries) for one in plan.targets]


def sources_of(entries: Sequence[Entry]) -> tuple[Source, ...]:
    """Entries as a plan knows them."""
    return tuple(
        Source(
            entry.file.label,
            entry.file.sha256,
            entry.strength,
            entry.strength_on_clip,
            entry.preserve,
            entry.conflict_mode,
            entry.key_filter,
            (entry.held or "") if entry.preserve else "",
        )
        for entry in entries
    )
