"""Patches and measurements as named tensors and JSON, and back, bit for bit."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..analysis.similarity import Measured
from ..core.jsonvalues import as_count, as_list, as_number, as_object
from ..lora.entries import Group
from ..lora.factors import Delta, LowRank
from ..lora.full import Dense, Kron
from ..merging.deferred import Deferred
from ..merging.patch import Patch
from ..merging.plan import TargetPlan

GRAM, CONFLICT = "gram", "conflict"


def are_kept(patches: Sequence[Patch]) -> bool:
    """Whether all patches have their values, and none is made anew at every look."""
    return not any(isinstance(patch.delta, Deferred) for patch in patches)


def packed(patches: Sequence[Patch]) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Patches in JSON's own kinds, and their tensors by place and role."""
    told, tensors = [], {}
    for place, patch in enumerate(patches):
        told.append(
            {
                "scale": patch.delta.scale,
                "shape": list(patch.shape),
                "error": patch.error,
                "kept": patch.kept,
                "norm": patch.norm,
                "projections": list(patch.projections),
                "rounding": patch.rounding,
                "cut": patch.cut,
                "unshared": patch.unshared,
            }
        )
        tensors.update({f"{place}.{role}": value for role, value in patch.delta.tensors.items()})
    return told, tensors


def unpacked(told: object, tensors: Mapping[str, Tensor], targets: Sequence[TargetPlan]) -> tuple[Patch, ...]:
    """The patches that `packed` was given, one for each target of their plan.

    Raises:
        KeyError: something is missing.
        ValueError: a value is of another kind, or there is not one patch a target.
    """
    return tuple(
        _patch(as_object(fields), place, tensors, target)
        for place, (fields, target) in enumerate(zip(as_list(told), targets, strict=True))
    )


def _patch(fields: Mapping[str, Any], place: int, tensors: Mapping[str, Tensor], target: TargetPlan) -> Patch:
    shape = tuple(map(as_count, as_list(fields["shape"])))
    return Patch(
        target=target.target,
        delta=_delta(place, tensors, as_number(fields["scale"]), shape),
        error=as_number(fields["error"]),
        kept=as_count(fields["kept"]),
        norm=as_number(fields["norm"]),
        projections=tuple(map(as_number, as_list(fields["projections"]))),
        rounding=as_number(fields["rounding"]),
        cut=as_number(fields["cut"]),
        unshared=as_number(fields["unshared"]),
    )


def _delta(place: int, tensors: Mapping[str, Tensor], scale: float, shape: tuple[int, ...]) -> Delta:
    if f"{place}.up" in tensors:
        return LowRank(tensors[f"{place}.up"], tensors[f"{place}.down"], scale, shape)
    if f"{place}.first" in tensors:
        return Kron(tensors[f"{place}.first"], tensors[f"{place}.second"], scale, shape)
    return Dense(tensors[f"{place}.matrix"], scale, shape)


def packed_measured(measured: Sequence[Measured]) -> dict[str, Tensor]:
    """The dot products and conflicts of all targets, one behind the other, float64."""
    grams = [one.gram.flatten() for one in measured]
    conflicts = [
        one.gram.new_zeros(1) if one.conflict is None else one.conflict.flatten() for one in measured
    ]
    return {GRAM: torch.cat(grams), CONFLICT: torch.cat(conflicts)}


def unpacked_measured(tensors: Mapping[str, Tensor], groups: Sequence[Group]) -> list[Measured]:
    """The measurements that `packed_measured` was given.

    Raises:
        KeyError: something is missing.
        ValueError: they are of other targets.
    """
    sizes = [len(group.contributions) ** 2 for group in groups]
    gram, conflict = tensors[GRAM], tensors[CONFLICT]
    if gram.shape != (sum(sizes),) or conflict.shape != gram.shape:
        raise ValueError("the measurements are of other targets")
    return list(_measured(gram.split(sizes), conflict.split(sizes), groups))


def _measured(
    grams: Sequence[Tensor], conflicts: Sequence[Tensor], groups: Sequence[Group]
) -> Iterator[Measured]:
    for group, gram, conflict in zip(groups, grams, conflicts, strict=True):
        entries = tuple(one.entry for one in group.contributions)
        count = len(entries)
        torn = conflict.reshape(count, count) if count > 1 else None
        yield Measured(group.target, entries, gram.reshape(count, count), prod(group.shape), torn)
