"""What to do with a stack: a frozen value that goes through JSON unchanged."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from ..core.errors import RecipeError
from ..core.params import Choice, Span, checked, unknown
from .methods import METHODS

AUTO = "auto"
VERSION = 1

GlobalScale = Annotated[str, Choice(("auto", "none", "mean", "strongest"))]
StrengthScale = Annotated[str, Choice(("absolute", "relative"))]
Dtype = Annotated[str, Choice(("auto", "float32", "float16", "bfloat16"))]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A full description of a merge; the stack is not part of it.

    Attributes:
        method: a merge method, or `auto` to choose for every target.
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
        dtype: of the result's factors; `auto` is the widest of the inputs.
        partial: go on without modules that are not read.
        hold_structural: hold LCM, Lightning, Turbo, Hyper, DPO, edit and other structural LoRAs out of the blend and
            add them on top, exactly, like preserved ones.
        honour_metadata: take scales from headers, and from settings beside files, where files store no alpha;
            loaders apply 1.
    """

    method: str = AUTO
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

    def __post_init__(self) -> None:
        checked(Recipe, asdict(self), "the recipe")
        if self.method != AUTO:
            if self.method not in METHODS:
                raise RecipeError(unknown(METHODS.what, self.method, dict.fromkeys([AUTO, *METHODS])))
            object.__setattr__(self, "method", self.method.replace("-", "_"))

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
