"""What a stack is, in JSON's own kinds: contents, strengths and places, never names or times."""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from ..lora.entries import Contribution, Entry, Group
from ..lora.stack import Stack
from ..lora.target import Target
from ..merging.inner import InnerFile
from ..merging.recipe import Recipe


def entry_key(entry: Entry) -> dict[str, Any]:
    """An entry of a resolved stack; what its file is called is free."""
    return {
        "content": entry.file.sha256,
        "strength": entry.strength,
        "clip_strength": entry.strength_on_clip,
        "preserve": entry.preserve,
        "held": bool(entry.preserve and entry.held),
        "conflict_mode": entry.conflict_mode,
        "key_filter": entry.key_filter,
    }


def places(stack: Stack) -> list[int]:
    """The entries of a stack in an order of their own: whatever the user's order, the same."""
    identities = [
        (entry.file.sha256, entry.preserve, entry.conflict_mode, entry.key_filter, bool(entry.file.told))
        for entry in stack.entries
    ]
    return sorted(range(len(identities)), key=identities.__getitem__)


def group_key(group: Group) -> list[Any]:
    """A target, without what is brought to it."""
    return [*_target(group.target), list(group.shape), group.is_wider]


def contribution_key(one: Contribution) -> list[Any]:
    """What is taken of a file for a target."""
    module = one.module
    part = one.part and [one.part.axis, one.part.start, one.part.length]
    return [
        module.key,
        module.format,
        module.rank,
        module.shape and list(module.shape),
        module.gain,
        _target(one.home),
        one.swap_halves,
        part,
        one.wider and list(one.wider),
    ]


def is_plain(stack: Stack, one: Contribution) -> bool:
    """Whether a contribution is told by its file's content alone: no base weight, and no formula, stands behind it."""
    return not one.module.base_reason and not isinstance(stack.entries[one.entry].file, InnerFile)


def cleaned(stack: Stack, entry: Entry, recipe: Recipe) -> float | None:
    """How an entry's deltas are cleaned before they are measured; None where they are not."""
    return None if entry.preserve or stack.clean is None else recipe.star_eta


def base_weights(stack: Stack, recipe: Recipe) -> str | None:
    """The hash of those base weights that a merge depends on; None if it depends on none."""
    names = set(_needed(stack, recipe))
    if not names or stack.model is None:
        return None
    found = hashlib.sha256()
    for name in sorted(names):
        weight = stack.model.base(name)
        found.update(f"{name}\0{None if weight is None else tuple(weight.shape)}\0".encode())
        if weight is not None and weight.numel():
            plain = weight.detach().cpu().contiguous()
            found.update(f"{plain.dtype}\0".encode())
            found.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _needed(stack: Stack, recipe: Recipe) -> Iterator[str]:
    for group in stack.groups:
        if recipe.tame:
            yield group.target.weight
        yield from (one.home.weight for one in group.contributions if one.module.base_reason)
    for entry in stack.entries:
        if isinstance(entry.file, InnerFile):
            yield from _needed(entry.file.stack, recipe)


def _target(target: Target) -> list[Any]:
    part = target.part
    return [target.weight, part and [part.axis, part.start, part.length]]
