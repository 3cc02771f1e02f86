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
from typing import Any, TypeAlias

from ..core.jsonvalues import as_count, as_list, as_number, as_object, as_text

Setting: TypeAlias = float | int | str | bool

ALL, LOW, HIGH = "all", "low_conflict", "high_conflict"
KNOTS, TALL, ORTHOGONALISE, COLUMN_WISE = "knots", "tall_masks", "orthogonalise", "column_wise"


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
        settings: parameters of the sparsifier, the enhancers and the method, by name; all of them decided.
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
            settings={name: _setting(value) for name, value in as_object(fields["settings"]).items()},
        )
        sizes = {len(work.places), len(work.strengths), len(work.contents), len(work.masks)}
        if len(sizes) != 1:
            raise ValueError("the work on a target has not one strength a LoRA")
        return work


def _setting(value: Any) -> Setting:
    return value if isinstance(value, bool | int | str) else as_number(value)
