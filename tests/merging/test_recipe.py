"""Recipes: frozen, through JSON unchanged, and what they do not know is refused with a sentence."""

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from lora_alloy.core.errors import RecipeError
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.presets import PRESETS
from lora_alloy.merging.recipe import Recipe

RECIPES = [
    Recipe(),
    *(Recipe(method=name) for name in METHODS),
    *PRESETS.values(),
    Recipe(
        method="slerp",
        auto_strength=False,
        auto_strength_floor=0.85,
        global_scale="strongest",
        strength_scale="relative",
        rank=32,
        tolerance=0.01,
        dtype="bfloat16",
        partial=True,
    ),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_a_recipe_goes_through_json_unchanged(recipe):
    text = json.dumps(recipe.to_json(), allow_nan=False)
    assert Recipe.from_json(json.loads(text)) == recipe
    assert Recipe.parse(text, "a test") == recipe


def test_absent_fields_keep_their_defaults():
    assert Recipe.from_json({}) == Recipe()
    assert Recipe.from_json({"version": 1, "rank": 8}) == Recipe(rank=8)


def test_hyphens_name_the_same_method():
    assert Recipe(method="weighted-sum") == Recipe(method="weighted_sum")


def test_a_recipe_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Recipe().rank = 3  # type: ignore[misc]
    assert replace(Recipe(), rank=3).rank == 3


@pytest.mark.parametrize(
    ("recipe", "scale"),
    [
        (Recipe(), "mean"),
        (Recipe(method="slerp"), "none"),
        (Recipe(method="slerp", global_scale="strongest"), "strongest"),
        (Recipe(global_scale="none"), "none"),
        (PRESETS["balanced"], "mean"),
        (PRESETS["vivid"], "strongest"),
        (PRESETS["plain"], "none"),
    ],
    ids=str,
)
def test_the_global_scale_belongs_to_the_automatic_choice(recipe, scale):
    assert recipe.scale_to == scale


UNKNOWN = {
    "a method": ({"method": "teis"}, "No merge method is called 'teis'.*Known: auto, weighted_sum"),
    "nearly a method": ({"method": "slrep"}, "Did you mean 'slerp'"),
    "a method that is no word": ({"method": 3}, "`method` of the recipe must be str, not 3"),
    "a list of methods": ({"method": ["slerp"]}, "must be str"),
    "no method": ({"method": None}, "must be str, not None"),
    "a field": ({"ranks": 4}, "No field of a recipe is called 'ranks'. Did you mean 'rank'"),
    "a negative rank": ({"rank": -1}, "`rank` of the recipe is -1; it must lie between 0 and 4096"),
    "a broken rank": ({"rank": 2.5}, "must be int, not 2.5"),
    "a rank in words": ({"rank": "8"}, "must be int, not '8'"),
    "a rank that is true": ({"rank": True}, "must be int, not True"),
    "a tolerance above one": ({"tolerance": 1.5}, "must lie between 0 and 1"),
    "a tolerance that is no number": ({"tolerance": float("nan")}, "must lie between 0 and 1"),
    "a floor below zero": ({"auto_strength_floor": -1.0}, "must lie between 0 and 1"),
    "a dtype": (
        {"dtype": "float8"},
        "`dtype` of the recipe is 'float8'; known: auto, float32, float16, bfloat16",
    ),
    "a scale": ({"global_scale": "loudest"}, "known: auto, none, mean, strongest"),
    "a way to count strengths": ({"strength_scale": "own"}, "known: absolute, relative"),
    "a switch that is a number": ({"auto_strength": 1}, "must be bool, not 1"),
    "a later version": ({"version": 2}, "of version 2; this program reads version 1"),
}


@pytest.mark.parametrize(("given", "sentence"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_a_recipe_does_not_know_is_refused_with_a_sentence(given, sentence):
    with pytest.raises(RecipeError, match=sentence):
        Recipe.from_json(given)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "the file is not JSON"),
        ("", "the file is not JSON"),
        ("[1]", "the file is not a recipe: a JSON object is needed, not a list"),
        ("null", "not a NoneType"),
        ('{"rank": 1e400}', "must be int, not inf"),
        ("[" * 100_000, "is not JSON"),
    ],
    ids=lambda value: value[:12],
)
def test_text_that_is_no_recipe_is_refused_with_a_sentence(text, sentence):
    with pytest.raises(RecipeError, match=sentence):
        Recipe.parse(text, "the file")


def test_presets_are_looked_up_by_name():
    with pytest.raises(RecipeError, match="No preset is called 'vivd'. Did you mean 'vivid'"):
        PRESETS["vivd"]
