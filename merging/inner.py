"""Formulas: the result of one merge as an entry of the next.

An inner result is not written anywhere. It is a file to the outer stack whose modules are its patches, in float32
and in their exact form, made when they are asked for: a combination is kept, since it is small; a dense result is made
again each time, since a model's worth of them is not.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from ..analysis.measure import measure
from ..analysis.similarity import Measured
from ..core.errors import RecipeError
from ..core.progress import Progress, silent
from ..core.tensorfile import TensorInfo, tensors_in_memory
from ..core.threads import one_thread
from ..lora.factors import Delta, LowRank
from ..lora.file import LoraFile
from ..lora.formats import Module
from ..lora.stack import Entry, Group, Model, Stack, build_stack
from . import formula
from .cleaning import cleaner
from .engine import patch_of, width_of
from .holding import held_out
from .plan import Plan, Source, TargetPlan, is_for, make_plan
from .recipe import Recipe

TRIGGERS = "modelspec.trigger_phrase"


class InnerFile(LoraFile):
    """A finished plan as an entry's file.

    Attributes:
        stack: what it merges.
        plan: how.
    """

    def __init__(self, label: str, stack: Stack, plan: Plan, device: torch.device | str = "cpu") -> None:
        self.label = label
        self.path = None
        self.stack, self.plan, self._device = stack, plan, device
        phrases = {entry.file.tensors.metadata.get(TRIGGERS, "").strip() for entry in stack.entries} - {""}
        told = {TRIGGERS: ", ".join(sorted(phrases))} if phrases else {}
        self.tensors = tensors_in_memory(Path(label), {}, told, 0, stack.release)
        self._stored, self.scales = self.tensors, MappingProxyType({})
        modules = [self._module(group) for group in stack.groups]
        self._places = {module.key: place for place, module in enumerate(modules)}
        self._kept: dict[str, Delta] = {}
        self.modules = MappingProxyType({module.key: module for module in modules})
        self.unread, self.accounts, self.told = (), (), MappingProxyType({})
        self.families = (stack.family,) if stack.family else ()

    @cached_property
    def sha256(self) -> str:
        """The hash of what is merged and how: the same for every order of the stack, whatever its files are called."""
        contents = [entry.file.sha256 for entry in self.stack.entries]
        said = {
            "recipe": self.plan.recipe.to_json(),
            "sources": sorted(_identity(source) for source in self.plan.sources),
            "targets": [_decided(target, contents) for target in self.plan.targets],
        }
        return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def honouring(self) -> "InnerFile":
        """Itself: its own files were asked when it was planned."""
        return self

    def group_of(self, module: Module) -> Group:
        """What it merges into one of its modules."""
        return self.stack.groups[self._places[module.key]]

    def load(self, module: Module, base: Tensor | None = None) -> Delta:
        """The result on one target.

        Raises:
            FileError: the tensors of its sources cannot be read.
        """
        if module.key in self._kept:
            return self._kept[module.key]
        place = self._places[module.key]
        group, target = self.stack.groups[place], self.plan.targets[place]
        with torch.no_grad(), one_thread():
            delta = patch_of(self.stack, group, target, self.plan, torch.float32, self._device).delta
        if isinstance(delta, LowRank):
            self._kept[module.key] = delta
        return delta

    def _module(self, group: Group) -> Module:
        name = self.stack.spellings.get(group.target, str(group.target))
        widest = max((one.module for one in group.contributions), key=width_of)
        rank = min(sum(one.module.rank for one in group.contributions), min(group.shape))
        info = TensorInfo(name, widest.dtype, group.shape, 0, 0)
        return Module(
            name, "merge", {"result": info}, rank, group.shape, home=group.target, is_wider=group.is_wider
        )


def _identity(source: Source) -> list[str]:
    """A source without its name."""
    numbers = (float(source.strength), float(source.clip_strength), source.preserve)
    return [source.sha256, *map(repr, numbers), source.conflict_mode, source.key_filter]


def _decided(target: TargetPlan, contents: Sequence[str]) -> list[object]:
    """What is done on a target, with the LoRAs in the order of their content."""
    names = [contents[entry] for entry in target.entries]
    made: list[object] = [
        str(target.target),
        target.method,
        sorted(zip(names, target.coefficients, strict=True)),
    ]
    work = target.work
    if work is not None:
        apart = replace(work, places=(), strengths=(), contents=(), masks=())
        made += [sorted(zip(work.contents, work.strengths, work.masks, strict=True)), asdict(apart)]
    return made


def assembled(
    entries: Sequence[Entry],
    recipe: Recipe,
    model: Model | None = None,
    plans: Mapping[str, Plan] = MappingProxyType({}),
    progress: Progress = silent,
    device: torch.device | str = "cpu",
    measured: Callable[[Stack, Progress], Sequence[Measured]] = lambda stack, progress: measure(
        stack, progress=progress
    ),
) -> tuple[Stack, dict[str, Plan]]:
    """The outermost stack of a formula, and the plans of what it merges first, by label.

    Args:
        entries: the user's stack, in the order that the formula counts.
        recipe: with the formula; everything else is done on every level.
        model: what the host knows of the base model.
        plans: of inner results, to be replayed; others are made.
        progress: told of every inner merge.
        device: where element-wise work is done.
        measured: what measures inner stacks.

    Raises:
        RecipeError: the formula cannot be read, or a plan is for other LoRAs.
        FileError: a file cannot be read.
        StackError: LoRAs do not fit together.
    """
    tree = formula.parse(recipe.formula, len(entries))
    inside = replace(recipe, formula="", dtype="float32", rank=0, tolerance=0.0, compress="disabled")
    made: dict[str, Plan] = {}

    def stack_of(group: formula.Group) -> Stack:
        members = []
        for member in group.members:
            if isinstance(member, formula.Leaf):
                members.append(_weighted(entries[member.place], member.weight))
                continue
            stack = stack_of(member)
            plan = plans.get(member.label) or make_plan(stack, inside, measured(stack, progress), progress)
            if not is_for(plan, stack):
                raise RecipeError(
                    f"The plan of {member.label} was made for other LoRAs. Make the plan again."
                )
            made[member.label] = plan
            members.append(Entry(InnerFile(member.label, stack, plan, device), member.weight))
        built = build_stack(members, model, recipe.partial, recipe.honour_metadata)
        return replace(held_out(built, recipe), clean=cleaner(recipe))

    stack = stack_of(tree)
    named = formula.places_of(tree)
    notes = [
        f"`{entry.file.label}` is not in the formula `{recipe.formula}` and takes no part."
        for place, entry in enumerate(entries)
        if place not in named
    ]
    notes += (
        f"{label} is merged first: {len(plan.targets)} targets, {_methods(plan)}."
        for label, plan in made.items()
    )
    notes += (f"{label}: {note}" for label, plan in made.items() for note in plan.notes)
    return replace(stack, notes=(*stack.notes, *notes)), made


def _weighted(entry: Entry, weight: float) -> Entry:
    clip = None if entry.clip_strength is None else entry.clip_strength * weight
    return replace(entry, strength=entry.strength * weight, clip_strength=clip)


def _methods(plan: Plan) -> str:
    counts: dict[str, int] = {}
    for target in plan.targets:
        counts[target.method] = counts.get(target.method, 0) + 1
    return ", ".join(f"{method} {count}" for method, count in sorted(counts.items()))
