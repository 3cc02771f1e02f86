"""Remembered results: a plan with its patches, by the stack and the recipe that they come from.

Files go by content, and the stack's order is free: it changes no byte of a merge. What a plan says of names and of the
order is said anew for the stack at hand.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..analysis.measure import mute_notes
from ..analysis.similarity import Measured
from ..cache.store import Store
from ..core.errors import RecipeError
from ..core.jsonvalues import as_object
from ..lora.stack import Stack
from ..merging.holding import held_notes
from ..merging.patch import Patch
from ..merging.plan import Plan, is_for, sources_of
from ..merging.recipe import Recipe
from .identity import base_weights, contribution_key, entry_key, group_key, places
from .packing import are_kept, packed, packed_measured, unpacked, unpacked_measured
from .program import machine

RESULT, PLAN = "result", "plan"


def result_key(
    stack: Stack, recipe: Recipe, base: dict[str, Any], device: torch.device | str, is_lazy: bool = False
) -> dict[str, Any]:
    """All that a merge depends on.

    Args:
        stack: resolved, with what is held out of the blend.
        recipe: what is asked.
        base: the part of every key that stands for the program and the machine.
        device: where element-wise work is done.
        is_lazy: whether results of full rank are not kept.
    """
    order = places(stack)
    rank = {entry: place for place, entry in enumerate(order)}
    groups = []
    for group in stack.groups:
        brought = [[rank[one.entry], contribution_key(one)] for one in group.contributions]
        groups.append([group_key(group), brought])
    return {
        **base,
        "recipe": recipe.to_json(),
        "entries": [entry_key(stack.entries[entry]) for entry in order],
        "groups": groups,
        "family": stack.family.key if stack.family else None,
        "base_weights": base_weights(stack, recipe),
        "device": machine(device),
        "lazy": is_lazy,
    }


def recall(
    store: Store, key: dict[str, Any], stack: Stack
) -> tuple[Plan, list[Measured], tuple[Patch, ...] | None] | None:
    """A remembered merge: the plan, what it was made from, and its patches, None where only the plan is remembered."""
    found = store.get_tensors(RESULT, key) or store.get_tensors(PLAN, key)
    if found is None:
        return None
    try:
        fields = as_object(found[0])
        measured = unpacked_measured(found[1], stack.groups)
        plan = _for(Plan.from_json(as_object(fields["plan"])), stack, measured)
        if not is_for(plan, stack):
            return None
        if fields["patches"] is None:
            return plan, measured, None
        return plan, measured, unpacked(fields["patches"], found[1], plan.targets)
    except (KeyError, ValueError, RecipeError):
        return None  # of a kind that this program does not write


def keep(
    store: Store,
    key: dict[str, Any],
    stack: Stack,
    plan: Plan,
    measured: Sequence[Measured],
    patches: Sequence[Patch],
) -> None:
    """Remember a merge; of results that are not kept, the plan alone."""
    anonymous = _anonymous(plan, stack, measured)
    if anonymous is None:
        return
    has_values = are_kept(patches)
    told, tensors = packed(patches) if has_values else (None, {})
    value = {"plan": anonymous.to_json(), "patches": told}
    store.put_tensors(RESULT if has_values else PLAN, key, value, {**tensors, **packed_measured(measured)})


def _anonymous(plan: Plan, stack: Stack, measured: Sequence[Measured]) -> Plan | None:
    """The plan in the entries' own order, without what names files; None if it does not begin with them."""
    told = _notes(stack, measured)
    if plan.notes[: len(told)] != told:
        return None
    order = places(stack)
    return _reordered(replace(plan, notes=plan.notes[len(told) :], inner={}, leaves=()), order)


def _for(plan: Plan, stack: Stack, measured: Sequence[Measured]) -> Plan:
    """An anonymous plan for a stack: its order, its names, its notes."""
    order = places(stack)
    back = sorted(range(len(order)), key=order.__getitem__)
    plan = _reordered(plan, back)
    return replace(plan, sources=sources_of(stack.entries), notes=(*_notes(stack, measured), *plan.notes))


def _notes(stack: Stack, measured: Sequence[Measured]) -> tuple[str, ...]:
    return (*held_notes(stack.entries), *stack.notes, *mute_notes(stack, measured))


def _reordered(plan: Plan, order: Sequence[int]) -> Plan:
    """The plan with its entries in another order: first that which stood at `order[0]`."""
    if len(plan.sources) != len(order):
        raise ValueError("the plan is for another number of LoRAs")
    place = {entry: at for at, entry in enumerate(order)}
    targets = [replace(one, entries=tuple(place[entry] for entry in one.entries)) for one in plan.targets]
    scales = [
        replace(
            branch,
            factors=tuple(branch.factors[entry] for entry in order),
            energies=tuple(branch.energies[entry] for entry in order),
        )
        for branch in plan.scales
    ]
    sources = tuple(plan.sources[entry] for entry in order)
    return replace(plan, sources=sources, targets=tuple(targets), scales=tuple(scales))
