"""`func_noise`: what a model says about pure noise, merged and with each LoRA alone (`quality-bench/`).

One forward pass per LoRA, on the same noise, with that LoRA's prompt: the share of the LoRA's own effect on the model's
prediction that the merge keeps, `1 − ‖v_merged − v_alone‖² / ‖v_base − v_alone‖²`. 1 is all of it, 0 none, and less
than 0 is worse than without. On two zoos of trained LoRAs it ranks merges better than any score of weights alone:
Spearman .82 and .78 with their quality (`design.md` §3a).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from typing import TypeAlias

import torch
from torch import Tensor

from ..core.errors import RecipeError
from ..core.log import log
from ..lora.stack import Stack
from ..merging.patch import Patch
from .search import Evaluate, Trial
from .verdict import Verdict

Forward: TypeAlias = "Callable[[Sequence[Patch], int], Tensor]"
"""The model's prediction on fixed noise with these patches on it, and the prompt of an entry of the stack."""

LEAST = -1e3  # of a share: what counts as having ruined everything, and is still a number


def share_kept(merged: Tensor, alone: Tensor, base: Tensor) -> float | None:
    """`1 − ‖v_merged − v_alone‖² / ‖v_base − v_alone‖²`, at least `LEAST`; None where the LoRA has no effect.

    Args:
        merged: the prediction of the merged model; any shape.
        alone: of the model with one LoRA at its strength; the same shape.
        base: of the model without any.

    Raises:
        RecipeError: the model predicts no numbers without a merge.
    """
    merged, alone, base = (one.detach().double().cpu() for one in (merged, alone, base))
    effect = float((base - alone).square().sum())
    if not isfinite(effect):
        raise RecipeError(
            "The model predicts values that are no numbers, with one LoRA alone or without any."
        )
    if effect == 0.0:
        return None
    off = float((merged - alone).square().sum())
    return max(1 - off / effect, LEAST) if isfinite(off) else LEAST


class NoiseEvaluator:
    """Ranks merged candidates by `func_noise`, the mean over the LoRAs.

    Args:
        forward: runs the model; it must give the same for the same patches and entry.
        then: an evaluator that combines its own score with this one, instead of with that of the weights.
    """

    def __init__(self, forward: Forward, then: Evaluate | None = None) -> None:
        self._forward, self._then = forward, then
        self._known: list[tuple[Tensor, Tensor]] = []

    def __call__(self, trial: Trial) -> Verdict:
        """The verdict of a candidate; a later one needs one pass per LoRA, the first one three.

        Raises:
            RecipeError: the model predicts no numbers without a merge.
        """
        entries = range(len(trial.stack.entries))
        if not self._known:
            for entry in entries:
                trial.progress("run the model", entry, len(entries))
                alone = self._forward(patches_alone(trial.stack, entry), entry)
                self._known.append((alone, self._forward((), entry)))
        shares: list[float | None] = []
        for entry, (alone, base) in enumerate(self._known):
            trial.progress("run the model", entry, len(entries))
            shares.append(share_kept(self._forward(trial.patches, entry), alone, base))
        found = [one for one in shares if one is not None]
        own = sum(found) / len(found) - 1 if found else trial.candidate.score
        details = {"func_noise": own + 1 if found else None, "func_noise_of_each": shares}
        if not found:
            details["error"] = "No LoRA changes what the model says about noise."
        if self._then is None:
            return Verdict(None, own + 1 if found else own, details)
        said = self._then(replace(trial, candidate=replace(trial.candidate, measured=own, verdict=None)))
        if not isinstance(said, Verdict):
            raise RecipeError(
                "A forward pass on noise goes with an evaluator of this process only, not with workers."
            )
        return replace(said, details={**details, "evaluator": said.details})


def patches_alone(stack: Stack, entry: int) -> list[Patch]:
    """One LoRA of a stack at its strength, as a merge of nothing else would have it.

    Raises:
        FileError: its file cannot be read.
    """
    made: list[Patch] = []
    with torch.no_grad():
        for group in stack.walk():
            own = tuple(one for one in group.contributions if one.entry == entry)
            strength = stack.entries[entry].strength_on(group.target)
            deltas = stack.load(replace(group, contributions=own))
            made += [Patch(group.target, delta.times(strength), 0.0) for delta in deltas]
    log.debug("%s alone: %d targets", stack.entries[entry].file.label, len(made))
    return made
