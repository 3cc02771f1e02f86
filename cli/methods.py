"""`methods`: what a merge may be asked for."""

import argparse
import json
from inspect import cleandoc
from types import ModuleType

from ..core.params import Param, explained, settable
from ..merging.methods import METHODS, verb
from ..merging.presets import PRESETS
from ..merging.recipe import AUTO, Recipe
from .console import Console
from .options import refuse_outputs
from .output import json_path, write_json

EXAMPLE = Recipe(method="karcher", auto_strength=False, global_scale="mean", tolerance=0.01)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(options: argparse.Namespace, console: Console) -> int:
    """List methods, presets, and the fields of a recipe.

    Raises:
        SaveError: the JSON cannot be written.
    """
    refuse_outputs(json_path(options.json), [], is_forced=options.force)
    console.say("Merge methods (--method)")
    console.say(f"  {AUTO:<17} Chosen for every target: slerp for two LoRAs, karcher from three on.")
    for name, module in METHODS.items():
        console.say(f"  {name:<17} {_summary(module)}")
        for param in _params(module):
            console.say(f"    {_described(param)}")
    console.say("\nPresets (--preset)")
    for name, recipe in PRESETS.items():
        changed = ", ".join(f"{field} = {value}" for field, value in _changed(recipe).items())
        console.say(f"  {name:<17} {changed or 'the defaults'}")
    console.say("\nA recipe (--recipe FILE, or one flag a field)")
    texts = explained(Recipe)
    for name, param in settable(Recipe).items():
        console.say(f"  {_described(param)}")
        console.say(f"      {texts[name]}")
    console.say("\nAn example of such a file; what is left out keeps its default")
    console.say(f"  {json.dumps(_changed(EXAMPLE))}")
    write_json(options.json, "methods", _as_json(), console)
    return 0


def _summary(module: ModuleType) -> str:
    return cleandoc(module.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _params(module: ModuleType) -> list[Param]:
    return list(settable(verb(module)).values())


def _described(param: Param) -> str:
    allowed = ""
    if param.choice:
        allowed = f" ({', '.join(param.choice.words)})"
    elif param.span:
        allowed = f" ({param.span.low:g} to {param.span.high:g})"
    return f"{param.name} = {param.default}{allowed}"


def _changed(recipe: Recipe) -> dict[str, object]:
    default = Recipe().to_json()
    return {name: value for name, value in recipe.to_json().items() if value != default[name]}


def _as_json() -> dict[str, object]:
    return {
        "methods": {
            name: {
                "summary": _summary(module),
                "parameters": [_param_json(param) for param in _params(module)],
            }
            for name, module in METHODS.items()
        },
        "presets": {name: recipe.to_json() for name, recipe in PRESETS.items()},
        "recipe": [
            _param_json(param) | {"help": explained(Recipe)[param.name]}
            for param in settable(Recipe).values()
        ],
        "example": EXAMPLE.to_json(),
    }


def _param_json(param: Param) -> dict[str, object]:
    return {
        "name": param.name,
        "kind": param.kind.__name__,
        "default": param.default,
        "low": param.span.low if param.span else None,
        "high": param.span.high if param.span else None,
        "words": list(param.choice.words) if param.choice else None,
    }
