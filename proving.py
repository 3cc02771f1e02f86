"""The proof of a saved file against the LoRAs it was made of, long after the merge."""

from dataclasses import replace
from pathlib import Path

import torch

from .api import StackLike, entry_of, merge
from .core.errors import ProofError
from .core.progress import Progress, silent
from .lora import keys
from .lora.file import open_lora
from .lora.stack import Model, Stack
from .merging.matching import AGAIN, allowed_difference, counterparts
from .merging.metadata import Described, described
from .merging.provenance import as_decided
from .merging.recipe import Recipe
from .merging.saving import Proof, difference


def verify(
    path: Path | str,
    stack: StackLike,
    recipe: Recipe | None = None,
    *,
    model: Model | None = None,
    progress: Progress = silent,
    device: torch.device | str = "cpu",
) -> Proof:
    """Prove a saved file against its inputs again: merge them, and compare target by target.

    Args:
        path: a file that `Merged.save` wrote.
        stack: the entries it was made of.
        recipe: what was asked; None takes it from the file.
        model: the base model, if the merge was made with one.
        progress: told after every target.
        device: where element-wise work is done: devices round apart, so the one that the merge was done on.

    Raises:
        FileError: a file cannot be read.
        ProofError: the file is not what these inputs and this recipe give; the message says where and how
        far.
    """
    saved = open_lora(path)
    told = described(saved.tensors.metadata)
    if recipe is None:
        if told is None:
            raise ProofError(f"`{path}` does not say how it was made; give its recipe with `--recipe`.")
        recipe = told.recipe
    told = told or Described(recipe)
    merged = merge(_as_hosted(stack, told), recipe, model=model, progress=progress, device=device)
    pieces = merged.pieces(told)
    read_error, where = max(
        (difference(saved.load(module), piece), str(piece.patch.target))
        for piece, module in zip(pieces, counterparts(saved, merged.stack.lead, pieces), strict=True)
    )
    if read_error > max(map(allowed_difference, {patch.dtype for patch in merged})):
        raise ProofError(
            f"`{path}` is not what these inputs give: on {where} it differs by {read_error:.2e} of the norm."
            f" {AGAIN}"
        )
    worst = max(merged.patches, key=lambda patch: patch.error)
    return Proof(
        Path(path), len(pieces), read_error, worst.error, str(worst.target), saved.tensors.size_bytes
    )


def _as_hosted(stack: StackLike, told: Described) -> StackLike:
    """The entries without the modules that the model of the merge, in a host, did not have, held out as there."""
    if isinstance(stack, Stack):
        return replace(stack, entries=tuple(as_decided(stack.entries, told)))
    entries = as_decided([entry_of(one) for one in stack], told)
    if told.has_clip and not told.left_out:
        return entries
    hosted, left_out = [], set(told.left_out)
    for entry in entries:
        text = () if told.has_clip else filter(keys.is_text, entry.file.modules)
        hosted.append(replace(entry, file=entry.file.without(left_out.union(text))))
    return hosted
