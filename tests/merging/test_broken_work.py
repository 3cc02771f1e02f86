"""A plan whose element-wise work somebody changed by hand is refused in a sentence, before anything is merged."""

import json
from typing import Any

import pytest

from lora_alloy.api import merge, plan
from lora_alloy.core.errors import RecipeError
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.plan import Plan
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import file_of, toy_lora

ENTRIES = [Entry(file_of(toy_lora(seed), f"ink {seed}")) for seed in (1, 2, 3)]
RECIPES = {
    "TIES": Recipe(method="ties", enhance="full"),
    "a thinned sum": Recipe(method="weighted_sum", sparsify="dare"),
    "consensus": Recipe(method="consensus", sparsify="della_conflict", enhance="refine"),
}
BROKEN: dict[str, tuple[str, Any]] = {
    "a LoRA that is not there": ("places", [0, 1, 9]),
    "one LoRA twice": ("places", [0, 0, 1]),
    "no such mask": ("masks", ["all", "all", "some"]),
    "no such sparsifier": ("sparsifier", "dara"),
    "no such enhancer": ("enhancers", ["knot"]),
    "no strength": ("strengths", [0, 1, 1]),
    "a strength beyond all use": ("strengths", [1e300, 1, 1]),
    "a gain that is no number": ("gain", "loud"),
    "fewer masks than LoRAs": ("masks", ["all"]),
}
BROKEN_SETTINGS: dict[str, tuple[str, Any]] = {
    f"{name} {value!r:.20}": (name, value)
    for name, values in {
        "density": ["much", -1, 0, 5, 10**400, [1]],
        "rank_limit": [-3, 0, "all", 2.5],
        "dampening": ["q", 3],
        "dominance": ["a", -5],
        "vote": ["auto", "by hand", 3],
        "divisor": ["none"],
        "unit": ["column"],
        "symmetric": ["yes"],
        "threshold": [3],
    }.items()
    for value in values
}


def changed(recipe: Recipe, name: str, value: object, *, is_setting: bool) -> dict[str, Any]:
    told = json.loads(json.dumps(plan(ENTRIES, recipe).to_json()))
    work = told["targets"][0]["work"]
    (work["settings"] if is_setting else work)[name] = value
    return told


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("how", BROKEN)
def test_work_that_cannot_be_done_is_refused(how, recipe):
    with pytest.raises(RecipeError):
        merge(ENTRIES, Plan.from_json(changed(recipe, *BROKEN[how], is_setting=False)))


@pytest.mark.parametrize("how", BROKEN_SETTINGS)
def test_a_setting_that_is_not_allowed_is_refused(how):
    with pytest.raises(RecipeError):
        Plan.from_json(changed(RECIPES["TIES"], *BROKEN_SETTINGS[how], is_setting=True))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_plan_with_work_goes_through_json_unchanged(recipe):
    made = plan(ENTRIES, recipe)
    assert Plan.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_density_that_leaves_next_to_nothing_is_refused():
    with pytest.raises(RecipeError, match=r"between 0\.01 and 1"):
        Recipe(method="weighted_sum", sparsify="dare", density=1e-9)
