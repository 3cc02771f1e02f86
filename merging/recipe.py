"""What to do with a stack: a frozen value that goes through JSON unchanged."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from ..core.errors import RecipeError
from ..core.params import Choice, Span, checked, unknown
from ..sparsify import SPARSIFIERS
from .methods import METHODS
from .recipe_words import Divisor, Vote
from .work import COLUMN_WISE, KNOTS, LEAST_DENSITY, ORTHOGONALISE, TALL

AUTO = "auto"
NONE = "none"
TRIM = "trim"
DENSITY = 0.7  # of sparsifiers other than the trim
REFINEMENTS = {
    NONE: (),
    "refine": (ORTHOGONALISE, TALL, COLUMN_WISE),
    "full": (ORTHOGONALISE, TALL, COLUMN_WISE, KNOTS),
}
VERSION = 1

GlobalScale = Annotated[str, Choice(("auto", "none", "mean", "strongest"))]
StrengthScale = Annotated[str, Choice(("absolute", "relative"))]
Scope = Annotated[str, Choice(("target", "global", "additive"))]
StrategySet = Annotated[str, Choice(("full", "no_slerp", "basic"))]
ArchitectureName = Annotated[str, Choice(("auto", "sd_unet", "dit", "llm"))]
Compress = Annotated[str, Choice(("smart", "aggressive", "disabled"))]
Dtype = Annotated[str, Choice(("auto", "float32", "float16", "bfloat16"))]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A full description of a merge; the stack is not part of it.

    Attributes:
        method: a merge method, or `auto` to choose for every target.
        density: the share of entries that stay in TIES' trim and in sparsifiers; 0 chooses, by the deltas for the
            trim and 0.7 for others.
        sparsify: set entries to zero before the blend: `none`, `trim`, `dare`, `della`, `dare_conflict`,
            `della_conflict`.
        dampening: how much less DARE scales up what it keeps: 0 is the paper's 1/density, 1 not at all.
        enhance: what is done to the stack before the blend, a list with commas: `orthogonalise`, `tall_masks`,
            `column_wise`, `knots`; `refine` is the first three, `full` all of them.
        auto_strength: turn the blend down to the energy of its strongest LoRA where it would be louder; model
            and text encoders apart, ratios stay, preserved LoRAs are neither counted nor scaled.
        auto_strength_floor: the least factor auto-strength may apply, 0 for no limit.
        global_scale: the norm the blend is brought to: `mean` or `strongest` of the LoRAs' norms, never
            louder than the plain sum; `none`; `auto` is `mean` for the method `auto` and `none` for a named
            one.
        strength_scale: `absolute` makes every method as strong as its strengths are; `relative` leaves
            averaging methods blind to a common factor of the strengths, as their papers have them;
            auto-strength and the global scale go by the strengths all the same.
        rank: the largest rank of the result, 0 for what the stack asks for; preserved LoRAs stay exactly if
            it leaves room for more than them.
        tolerance: the relative error a smaller rank may cost, 0 for none; preserved LoRAs stay exactly.
        dtype: of the result's factors; `auto` is the widest of the inputs, and float32 on a target of which that would
            take more than a hundredth.
        partial: go on without modules that are not read.
        hold_structural: hold LCM, Lightning, Turbo, Hyper, DPO, edit and other structural LoRAs out of the blend and
            add them on top, exactly, like preserved ones.
        honour_metadata: take scales from headers, and from settings beside files, where files store no alpha;
            loaders apply 1.
        scope: `target` chooses a method for every weight, `global` one for the model and one for the text encoders,
            `additive` adds everything up.
        strategy_set: what the method `auto` may choose: `full` adds LoRAs up, loud ones turned down for quiet ones, and
            takes TIES where they are torn; `no_slerp` averages, and takes consensus where they are alike; `basic`
            averages or takes TIES.
        smoothing: how far a weight's choice goes by its block: 0 by its own numbers, 1 by the block's.
        architecture: what the density is chosen for: `sd_unet`, `dit`, `llm`, or `auto` by the family.
        vote: how TIES elects signs: by `frequency`, by `total` mass, or `auto`: by mass where norms differ twofold.
        divisor: what TIES divides by: the `mass` of the strengths that agree, or their `count` as in the paper.
        symmetric: orthogonalise all LoRAs alike, not the weaker ones against the stronger.
        dominance: how much more than all others a LoRA must push an entry for TALL-masks to call it its own.
        rank_limit: the rank that KnOTS' shared basis may have.
        compress: results that are not low-rank by themselves: `smart` makes them so where that costs next to
            nothing, `aggressive` always, and states the error, `disabled` never.
        formula: what is merged first: `(1+2):0.6 + 3:0.4` merges 1 and 2, then the result at 0.6 with 3 at 0.4; empty
            merges all at once.
        star_eta: clean every LoRA by STAR: the percentage of its singular values' sum that stays; 100 is off.
        tame: turn LoRAs down that are large beside the base weight, by TAME: 0 is off, 1 brings them to the
            threshold; needs the base model.
        tame_threshold: the norm of a LoRA's change over that of the base weight from which TAME acts.
        seed: of everything that is drawn by chance.
    """

    method: str = AUTO
    density: Annotated[float, Span(0.0, 1.0)] = 0.0
    sparsify: str = NONE
    dampening: Annotated[float, Span(0.0, 1.0)] = 0.0
    enhance: str = NONE
    auto_strength: bool = True
    auto_strength_floor: Annotated[float, Span(0.0, 1.0)] = 0.0
    global_scale: GlobalScale = "auto"
    strength_scale: StrengthScale = "absolute"
    rank: Annotated[int, Span(0, 4096)] = 0
    tolerance: Annotated[float, Span(0.0, 1.0)] = 0.0
    dtype: Dtype = "auto"
    partial: bool = False
    hold_structural: bool = True
    honour_metadata: bool = False
    scope: Scope = "target"
    strategy_set: StrategySet = "full"
    smoothing: Annotated[float, Span(0.0, 1.0)] = 0.25
    architecture: ArchitectureName = "auto"
    vote: Vote = "auto"
    divisor: Divisor = "mass"
    symmetric: bool = False
    dominance: Annotated[float, Span(0.1, 10.0)] = 1.0
    rank_limit: Annotated[int, Span(1, 4096)] = 256
    compress: Compress = "smart"
    formula: str = ""
    star_eta: Annotated[float, Span(10.0, 100.0)] = 100.0
    tame: Annotated[float, Span(0.0, 1.0)] = 0.0
    tame_threshold: Annotated[float, Span(0.05, 2.0)] = 0.3
    seed: Annotated[int, Span(0, 2**32 - 1)] = 0

    def __post_init__(self) -> None:
        checked(Recipe, asdict(self), "the recipe")
        if 0.0 < self.density < LEAST_DENSITY:
            raise RecipeError(
                f"`density` of the recipe is {self.density:g}; it must lie between {LEAST_DENSITY} and 1, or be 0 to be"
                " chosen."
            )
        if self.method != AUTO:
            if self.method not in METHODS:
                raise RecipeError(unknown(METHODS.what, self.method, dict.fromkeys([AUTO, *METHODS])))
            object.__setattr__(self, "method", self.method.replace("-", "_"))
        if self.sparsify != NONE:
            if self.sparsify not in SPARSIFIERS:
                raise RecipeError(unknown("sparsifier", self.sparsify, dict.fromkeys([NONE, *SPARSIFIERS])))
            object.__setattr__(self, "sparsify", self.sparsify.replace("-", "_"))
        object.__setattr__(self, "enhance", ",".join(_enhancers(self.enhance)) or NONE)

    @property
    def sparsifier(self) -> str:
        """The sparsifier's name, empty for none."""
        return "" if self.sparsify == NONE else self.sparsify

    @property
    def enhancers(self) -> tuple[str, ...]:
        """The enhancers' names."""
        return () if self.enhance == NONE else tuple(self.enhance.split(","))

    @property
    def is_balanced(self) -> bool:
        """Whether the automatic choice balances the LoRAs of a branch, and adds them up."""
        is_free = self.method == AUTO and self.strategy_set == "full" and self.scope != "additive"
        return is_free and self.scale_to != "none"

    def density_of(self, sparsifier: str) -> float:
        """The density that a sparsifier takes; 0 where it is to be chosen by the deltas."""
        return self.density or (0.0 if sparsifier == TRIM else DENSITY)

    @property
    def scale_to(self) -> str:
        """The global scale that applies: `none`, `mean` or `strongest`."""
        if self.global_scale != AUTO:
            return self.global_scale
        return "mean" if self.method == AUTO else "none"

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON values."""
        return {"version": VERSION, **asdict(self)}

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> "Recipe":
        """A recipe from JSON values; absent fields keep their defaults.

        Raises:
            RecipeError: a field is unknown, or its value is not allowed.
        """
        values = dict(given)
        version = values.pop("version", VERSION)
        if version != VERSION:
            raise RecipeError(
                f"The recipe is of version {version!r}; this program reads version {VERSION}. Update it."
            )
        known = {field.name: field for field in fields(Recipe)}
        for name in values:
            if name not in known:
                raise RecipeError(unknown("field", name, known, of="a recipe"))
        return Recipe(**values)

    @staticmethod
    def parse(text: str, where: str) -> "Recipe":
        """A recipe from JSON text.

        Raises:
            RecipeError: the text is not JSON, or not a recipe.
        """
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise RecipeError(
                f"{where} is not JSON: {problem}. `lora-alloy methods` shows a recipe."
            ) from None
        if not isinstance(given, dict):
            raise RecipeError(
                f"{where} is not a recipe: a JSON object is needed, not a {type(given).__name__}."
            )
        try:
            return Recipe.from_json(given)
        except RecipeError as problem:
            raise RecipeError(f"{where} cannot be used: {problem}") from None


def _enhancers(text: str) -> list[str]:
    """The names in a list with commas, each once, in the order in which they act.

    Raises:
        RecipeError: one is unknown.
    """
    known = REFINEMENTS["full"]
    asked: set[str] = set()
    for word in text.replace("-", "_").replace(" ", "").split(","):
        if word in REFINEMENTS:
            asked.update(REFINEMENTS[word])
        elif word in known:
            asked.add(word)
        elif word:
            raise RecipeError(unknown("enhancer", word, dict.fromkeys([*REFINEMENTS, *known])))
    return [name for name in known if name in asked]
