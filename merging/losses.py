"""What a merge has lost of its exact result, told apart by cause, and from where on that is too much.

A smaller rank is asked for, by `rank`, `tolerance`, `compress` or a size: its loss is told, and never refused. What
rounding and the limit of KnOTS' basis take nobody asked for: beyond half of the result, a file is not written unless
the user says that it may be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from ..core.errors import SaveError
from .patch import LOSSY, Patch
from .recipe import Recipe

MOST = 0.5  # of the result's norm, a quarter of its energy: the file would be another merge


@dataclass(frozen=True)
class Losses:
    """Frobenius norms relative to the whole result's, all targets together.

    Attributes:
        rounding: what the dtype took.
        cut: what a smaller rank took.
        unshared: what KnOTS' basis could not hold of the LoRAs.
    """

    rounding: float
    cut: float
    unshared: float


def losses(patches: Sequence[Patch]) -> Losses:
    """The losses of a merge; 0 where there is nothing to lose."""
    norm = hypot(*(patch.norm for patch in patches))

    def share(parts: Sequence[float]) -> float:
        lost = hypot(*(patch.norm * part for patch, part in zip(patches, parts, strict=True)))
        return lost / norm if norm > 0 else 0.0

    return Losses(
        share([patch.rounding for patch in patches]),
        share([patch.cut for patch in patches]),
        share([patch.unshared for patch in patches]),
    )


def loss_notes(recipe: Recipe, patches: Sequence[Patch]) -> list[str]:
    """A sentence for every cause that takes more than a hundredth, and more than the recipe's tolerance."""
    lost, notes = losses(patches), []
    if lost.cut > max(LOSSY, recipe.tolerance):
        remedy = "a larger `rank` (`--rank`) keeps more"
        if not recipe.rank:
            remedy = "`compress` (`--compress`) as `smart` or `disabled` keeps it"
        notes.append(f"The smaller rank that is asked for leaves out {lost.cut:.0%} of the result; {remedy}.")
    if lost.rounding > LOSSY:
        notes.append(f"{_rounding(lost, patches)}.")
    if lost.unshared > LOSSY:
        notes.append(f"{_unshared(lost, recipe)}.")
    return notes


def refuse_losses(recipe: Recipe, patches: Sequence[Patch], most: float) -> None:
    """Stop before a file is written that is without more than `most` of the merge.

    Raises:
        SaveError: rounding or KnOTS' basis took more than that, or that is no number.
    """
    if not most >= 0:
        raise SaveError(f"`max_loss` is {most}; it must be a number from 0 on.")
    lost = losses(patches)
    if hypot(lost.rounding, lost.unshared) <= most:
        return
    told = _rounding(lost, patches) if lost.rounding >= lost.unshared else _unshared(lost, recipe)
    raise SaveError(
        f"Nothing was saved: more than {most:.0%} of the merge is gone. {told}, or allow it with `max_loss`"
        " (`--max-loss`)."
    )


def _rounding(lost: Losses, patches: Sequence[Patch]) -> str:
    worst = max(patches, key=lambda patch: patch.rounding * patch.norm)
    name = str(worst.dtype).removeprefix("torch.")
    return f"Rounding to {name} takes {lost.rounding:.0%} of the result; merge in float32 (`--dtype float32`)"


def _unshared(lost: Losses, recipe: Recipe) -> str:
    return (
        f"KnOTS' shared basis, of rank {recipe.rank_limit} at most, lacks {lost.unshared:.0%} of the LoRAs; a larger"
        " `rank_limit` (`--rank-limit`) holds more"
    )
