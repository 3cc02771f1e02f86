"""The analysis pass: one target at a time, only its numbers kept."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..core.errors import FileError
from ..core.progress import Progress, silent, told
from ..core.threads import one_thread
from ..lora.factors import Delta
from ..lora.stack import Group, Stack
from .conflict import sign_conflict
from .similarity import Measured, gram_matrix, norms
from .subspace import overlap, spectrum

LARGEST = torch.finfo(torch.float32).max ** 2  # an energy; what is done with norms stays finite below


def measure(stack: Stack, *, is_deep: bool = False, progress: Progress = silent) -> list[Measured]:
    """Measure every group of a stack, in the order of its groups.

    Args:
        stack: what to measure.
        is_deep: also spectra and subspace overlaps.
        progress: told after every target.

    Raises:
        FileError: a file holds values that are not finite.
    """
    measured = []
    for group in told(stack.walk(), len(stack.groups), "analyse", progress):
        with one_thread():
            measured.append(_measure_group(stack, group, is_deep))
    return measured


def _measure_group(stack: Stack, group: Group, is_deep: bool) -> Measured:
    deltas = stack.load(group)
    gram = gram_matrix(deltas)
    if not bool((gram.diagonal() <= LARGEST).all()):  # NaN is not
        raise _not_finite(stack, group, deltas, gram)
    conflict = sign_conflict(deltas, group.target.weight) if len(deltas) > 1 else None
    between, ranks = None, ()
    if is_deep:
        spectra = [spectrum(delta) for delta in deltas]
        ranks = tuple(one.effective_rank for one in spectra)
        between = overlap(deltas, spectra, gram) if len(deltas) > 1 else None
    entries = tuple(contribution.entry for contribution in group.contributions)
    size = prod(group.shape)
    return Measured(group.target, entries, gram, size, conflict, between, ranks)


def mute_notes(stack: Stack, measured: Sequence[Measured]) -> list[str]:
    """A sentence for every entry that touches targets, and adds nothing to any of them."""
    touching = {entry for one in measured for entry in one.entries}
    return [
        f"`{entry.file.label}` changes nothing: at its strengths, all that it adds is zero."
        for index, (entry, norm) in enumerate(
            zip(stack.entries, norms(stack, measured).tolist(), strict=True)
        )
        if norm == 0.0 and index in touching
    ]


def _not_finite(stack: Stack, group: Group, deltas: list[Delta], gram: Tensor) -> FileError:
    for contribution, delta in zip(group.contributions, deltas, strict=True):
        file, name = stack.entries[contribution.entry].file, contribution.module.name
        for role, factor in delta.tensors.items():
            bad = int((~torch.isfinite(factor.float())).sum())
            if bad:
                return FileError(
                    f"`{name}` of `{file.label}` has {bad:,} values in its {role} factor that are NaN or"
                    f" infinite; the"
                    " training broke or the file is damaged. Take it out of the stack, or get it again."
                )
    huge = [
        f"`{contribution.module.name}` of `{stack.entries[contribution.entry].file.label}`"
        for place, contribution in enumerate(group.contributions)
        if not float(gram[place, place]) <= LARGEST
    ]
    return FileError(
        f"{' and '.join(huge)}: the values are too large for float32, so the training broke or the file is"
        " damaged. Take it out of the stack, or get it again."
    )
