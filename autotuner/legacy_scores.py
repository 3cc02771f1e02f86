"""Legacy: the scores that an earlier program ranked candidates by, computed beside ours (`spec/engine.md` §11.5).

They look at how even, how sparse and how loud a merge is, and not at its LoRAs: they do not tell how much of a LoRA a
merge keeps, and ours do (`scores.py`). They are here for those who want to compare, or to go on ranking as they did.

Departures: columns are drawn by the target's name and not by chance; a spread is of the targets that there are
(`÷ n`); what is preserved is left out of the expected energy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, sqrt

import torch

from ..analysis.similarity import Measured
from ..core.rng import spread
from ..core.spectrum import effective_rank
from ..core.threads import one_thread
from ..lora.factors import Delta, LowRank
from ..lora.stack import Stack
from ..merging.patch import Patch
from ..merging.plan import BRANCHES
from ..merging.recipe import Recipe
from ..merging.scale import branch_gram

FORMULAS = ("v1", "v2")
SPECTRA = ("disabled", "merge_quality", "lora_rank", "full")
COLUMNS = 64  # of a low-rank result that its sparsity is sampled on
LARGEST_RANK = 64  # of factors whose effective rank is looked at
SMALL = 0.01  # of the largest value: what counts as nothing
IDEAL_DENSITY = {"sd_unet": 0.7, "dit": 0.8, "llm": 0.5}
RANK = 40.0  # the mean effective rank from which more does not count


@dataclass(frozen=True)
class Metrics:
    """What these scores look at.

    Attributes:
        norm: the mean norm of the patches.
        norm_cv: their standard deviation over their mean.
        sparsity: the mean share of values below a hundredth of the largest; None where nothing was looked at.
        effective_rank: the mean exponential of the entropy of the spectra; None alike.
        energy_ratio: the norm of all patches over that of an average of the LoRAs.
    """

    norm: float
    norm_cv: float
    sparsity: float | None
    effective_rank: float | None
    energy_ratio: float

    @property
    def energy_preservation(self) -> float:
        """The ratio, at most 1."""
        return min(self.energy_ratio, 1.0)


def metrics(patches: Sequence[Patch], expected: float, spectra: str = "disabled") -> Metrics:
    """Look at patches.

    Args:
        patches: of a merge.
        expected: their norm, of `expected_norm`.
        spectra: which effective ranks are looked at: of whole results (`merge_quality`), of factors (`lora_rank`), of
            both (`full`), of none (`disabled`).
    """
    with torch.no_grad(), one_thread():
        norms = [patch.norm for patch in patches]
        shares = [_sparsity(patch.delta, str(patch.target)) for patch in patches]
        ranks = [_effective_rank(patch.delta, spectra) for patch in patches]
    mean = fsum(norms) / len(norms)
    deviation = sqrt(fsum((norm - mean) ** 2 for norm in norms) / len(norms))
    made = sqrt(fsum(norm * norm for norm in norms))
    return Metrics(
        mean,
        deviation / mean if mean > 0 else 0.0,
        _mean(shares),
        _mean(ranks),
        made / expected if expected > 0 else 1.0,
    )


def expected_norm(stack: Stack, measured: Sequence[Measured], *, is_orthogonal: bool) -> float:
    """The norm of an average of the LoRAs that blend, weighted by their strengths, model and text encoders alike.

    Args:
        stack: as the recipe holds it out.
        measured: of its groups.
        is_orthogonal: leave their dot products out.
    """
    total = 0.0
    for name in BRANCHES:
        gram = branch_gram(name, stack, measured)
        energy = float(gram.diagonal().sum() if is_orthogonal else gram.sum().clamp(min=0))
        weight = fsum(
            abs(entry.strength if name == "model" else entry.strength_on_clip)
            for entry, own in zip(stack.entries, gram.diagonal().tolist(), strict=True)
            if own > 0
        )
        total += energy / weight**2 if weight > 0 else 0.0
    return sqrt(total)


def legacy_score(formula: str, seen: Metrics, recipe: Recipe, architecture: str) -> float:
    """The score that an earlier program gave a merge: 0 to 1.

    Args:
        formula: `v1` or `v2`.
        seen: of the merge.
        recipe: its own.
        architecture: of the preset: `sd_unet`, `dit` or `llm`.
    """
    wanted = 0.4 if formula == "v1" else 1.0 - IDEAL_DENSITY[architecture]
    fit = 0.5 if seen.sparsity is None else max(0.0, 1.0 - 2.0 * abs(seen.sparsity - wanted))
    if recipe.sparsifier:
        fit /= 2
    even = max(0.0, 1.0 - seen.norm_cv)
    if seen.effective_rank is None:
        return 0.5 * even + 0.5 * fit
    rank = min(seen.effective_rank / RANK, 1.0)
    if formula == "v1":
        return 0.4 * rank + 0.3 * even + 0.3 * fit
    return 0.30 * rank + 0.25 * even + 0.20 * seen.energy_preservation + 0.25 * fit


def _sparsity(delta: Delta, name: str) -> float | None:
    if isinstance(delta, LowRank):
        columns = spread(COLUMNS, delta.numel // delta.shape[0], name)
        values = delta.block(torch.arange(delta.shape[0]), columns).abs()
    elif hasattr(delta, "matrix"):
        values = delta.flat().abs()
    else:
        return None
    largest = float(values.max()) if values.numel() else 0.0
    return float((values < SMALL * largest).float().mean()) if largest > 0 else None


def _effective_rank(delta: Delta, spectra: str) -> float | None:
    if isinstance(delta, LowRank):
        if spectra not in ("lora_rank", "full") or not 0 < delta.rank <= LARGEST_RANK:
            return None
        up = delta.up.double()
        return effective_rank(torch.linalg.eigvalsh(up.T @ up).clamp(min=0).sqrt())
    if spectra not in ("merge_quality", "full") or not hasattr(delta, "matrix") or len(delta.shape) != 2:
        return None
    matrix = delta.flat().double()
    if min(matrix.shape) <= 1:
        return None
    gram = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
    return min(effective_rank(torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()), float(min(matrix.shape)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None
