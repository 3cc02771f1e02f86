"""Element-wise work on one target: a frozen record in the plan, run on row tiles.

The order of its steps, each left out if it was not asked for (`spec/engine.md` §8.0, §17; `design.md` §3):

1. per-LoRA masks, `conflict_mode`;
2. sparsify: TIES' trim, DARE, DELLA …;
3. TALL-masks take out what belongs to one LoRA alone;
4. orthogonalise, a matrix of coefficients;
5. the method, then what it does to the whole target;
6. TALL-masks put back.

KnOTS comes before all of them: then the target is the shared basis' blocks, as its paper has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from ..core.jsonvalues import as_count, as_list, as_number, as_object, as_text
from ..core.params import Choice, Span, checked
from ..lora.stack import STRENGTH_LIMIT
from .recipe_words import Divisor, Unit

Setting: TypeAlias = float | int | str | bool

ALL, LOW, HIGH = "all", "low_conflict", "high_conflict"
KNOTS, TALL, ORTHOGONALISE, COLUMN_WISE = "knots", "tall_masks", "orthogonalise", "column_wise"
LEAST_DENSITY = 0.01  # below, what stays is scaled up beyond all use
MASKS, ENHANCERS = (ALL, LOW, HIGH), (KNOTS, TALL, ORTHOGONALISE, COLUMN_WISE)


def decided(
    *,
    dampening: Annotated[float, Span(0.0, 1.0)] = 0.0,
    density: Annotated[float, Span(LEAST_DENSITY, 1.0)] = 1.0,
    divisor: Divisor = "mass",
    dominance: Annotated[float, Span(0.1, 10.0)] = 1.0,
    rank_limit: Annotated[int, Span(1, 4096)] = 256,
    symmetric: bool = False,
    unit: Unit = "entry",
    vote: Annotated[str, Choice(("frequency", "total"))] = "frequency",
) -> dict[str, Setting]:
    """The settings of work, all of them; what a signature says of each holds for what comes from elsewhere, too."""
    return {
        "dampening": dampening,
        "density": density,
        "divisor": divisor,
        "dominance": dominance,
        "rank_limit": rank_limit,
        "symmetric": symmetric,
        "unit": unit,
        "vote": vote,
    }


@dataclass(frozen=True)
class Work:
    """What is done, element by element, with the LoRAs of a blend.

    Attributes:
        places: which of the target's entries blend, as places among them.
        strengths: of these, none 0.
        contents: of these, the hash of each file: what its chance is drawn by.
        masks: of these, the entry's `conflict_mode`.
        sparsifier: its name, empty for none.
        enhancers: their names.
        gain: a factor on the method's result.
        scale: a factor on what TALL-masks put back: the branch's scale.
        seed: of everything drawn by chance.
        settings: of `decided`.
    """

    places: tuple[int, ...]
    strengths: tuple[float, ...]
    contents: tuple[str, ...]
    masks: tuple[str, ...]
    sparsifier: str
    enhancers: tuple[str, ...]
    gain: float
    scale: float
    seed: int
    settings: Mapping[str, Setting]

    @staticmethod
    def from_json(given: object) -> "Work":
        """Work from JSON values.

        Raises:
            KeyError: a field is missing.
            ValueError: a value is of another kind.
            RecipeError: a setting is not allowed.
        """
        fields = as_object(given)
        work = Work(
            places=tuple(map(as_count, as_list(fields["places"]))),
            strengths=tuple(map(as_number, as_list(fields["strengths"]))),
            contents=tuple(map(as_text, as_list(fields["contents"]))),
            masks=tuple(map(as_text, as_list(fields["masks"]))),
            sparsifier=as_text(fields["sparsifier"]),
            enhancers=tuple(map(as_text, as_list(fields["enhancers"]))),
            gain=as_number(fields["gain"]),
            scale=as_number(fields["scale"]),
            seed=as_count(fields["seed"]),
            settings=checked(decided, as_object(fields["settings"]), "the work on a target"),
        )
        sizes = {len(work.places), len(work.strengths), len(work.contents), len(work.masks)}
        if len(sizes) != 1 or len(set(work.places)) != len(work.places) or not work.places:
            raise ValueError("the work on a target has not one strength a LoRA")
        if not all(0 < abs(strength) <= STRENGTH_LIMIT for strength in work.strengths):
            raise ValueError("a strength in the work on a target is none")
        if strange := {*work.masks} - {*MASKS} | {*work.enhancers} - {*ENHANCERS}:
            raise ValueError(f"the work on a target names {min(strange)!r:.60}")
        return work
