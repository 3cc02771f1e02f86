"""`methods`: what a merge may be asked for."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from inspect import cleandoc
from types import ModuleType

from ..core.params import Param, explained, settable
from ..enhance import ENHANCERS, star, tame
from ..merging.methods import METHODS, is_linear, shares_basis, verb
from ..merging.presets import PRESETS
from ..merging.recipe import AUTO, REFINEMENTS, Recipe
from ..sparsify import SPARSIFIERS
from .console import Console
from .options import refuse_outputs
from .output import json_path, write_json

EXAMPLE = Recipe(method="karcher", auto_strength=False, global_scale="mean", tolerance=0.01)
AUTOMATIC = (
    "Adds the LoRAs up at their mean norm, loud ones turned down for quiet ones; TIES where they are opposed. What else"
    " it may choose, `strategy_set` says."
)
COLUMN_WISE = (
    "Column-wise conflict resolution: a row elects one sign, and a LoRA takes part in all of it or nothing."
)
LINEAR = "linear: exact, in factor space"
ELEMENT_WISE = "element by element"
# Which of the recipe's fields the parameters of a function are, where the names differ.
FIELDS = {"eta": "star_eta", "layers": "tame", "threshold": "tame_threshold"}
RECIPES_OWN = frozenset(("unit", "restored"))  # parameters that no recipe sets


@dataclass(frozen=True)
class Listed:
    """What can be asked for: in a plain line, how it is worked out, where it is from, and what a recipe sets of it."""

    summary: str
    kind: str
    paper: str
    params: list[Param]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(options: argparse.Namespace, console: Console) -> int:
    """List methods, sparsifiers, enhancers, presets, and the fields of a recipe.

    Raises:
        SaveError: the JSON cannot be written.
    """
    refuse_outputs(json_path(options.json), [], is_forced=options.force)
    console.say("Merge methods (--method)")
    console.say(f"  {AUTO:<17} {AUTOMATIC}")
    for name, listed in _methods().items():
        _say(name, listed, console)
    console.say("\nSparsifiers (--sparsify)")
    for name, listed in _sparsifiers().items():
        _say(name, listed, console)
    console.say("\nEnhancers (--enhance, a list with commas)")
    for name, listed in _enhancers().items():
        _say(name, listed, console)
    for name, members in REFINEMENTS.items():
        if members:
            console.say(f"  {name:<17} {', '.join(members)}")
    console.say("\nCleaning of each LoRA by itself")
    for name, listed in _cleaning().items():
        _say(name, listed, console)
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


def _say(name: str, listed: Listed, console: Console) -> None:
    console.say(f"  {name:<17} {listed.summary}")
    told = [listed.kind, *([listed.paper] if listed.paper else [])]
    console.say(f"{'':20}{'; '.join(told)}")
    if listed.params:
        console.say(f"{'':20}settings: {', '.join(map(_described, listed.params))}")


def _methods() -> dict[str, Listed]:
    found: dict[str, Listed] = {}
    for name, module in METHODS.items():
        # A trim is part of TIES, unless another sparsifier takes its place.
        trim = _params(SPARSIFIERS[module.SPARSIFIER].sparsify) if hasattr(module, "SPARSIFIER") else []
        basis = _params(ENHANCERS["knots"].shared) if shares_basis(module) else []
        kind = LINEAR if is_linear(module) else ELEMENT_WISE
        kind += " of a basis that all share" if basis else ""
        found[name] = _listed(module, kind, [*trim, *_params(verb(module)), *basis])
    return found


def _sparsifiers() -> dict[str, Listed]:
    return {
        name: _listed(module, ELEMENT_WISE, _params(module.sparsify)) for name, module in SPARSIFIERS.items()
    }


def _enhancers() -> dict[str, Listed]:
    kinds = {
        "matrix": LINEAR,
        "enhance": ELEMENT_WISE,
        "shared": f"in factor space; what follows is {ELEMENT_WISE} of the basis",
    }
    found = {}
    for name, module in ENHANCERS.items():
        here = next(one for one in kinds if hasattr(module, one))
        found[name] = _listed(module, kinds[here], _params(getattr(module, here)))
    return found | {
        "column_wise": Listed(COLUMN_WISE, f"{ELEMENT_WISE}, in TIES and in conflict modes", "", [])
    }


def _cleaning() -> dict[str, Listed]:
    return {
        "star": _listed(star, "one LoRA at a time, in factor space", _params(star.cleaned)),
        "tame": _listed(tame, "one factor for each LoRA on each target", _params(tame.factor)),
    }


def _listed(module: ModuleType, kind: str, params: list[Param]) -> Listed:
    return Listed(_summary(module), kind, module.PAPER, params)


def _params(function: Callable[..., object]) -> list[Param]:
    """What a recipe sets of a function, under the recipe's names, with the recipe's defaults."""
    recipe = settable(Recipe)
    names = [FIELDS.get(name, name) for name in settable(function) if name not in RECIPES_OWN]
    return [recipe[name] for name in names]


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
        "auto": AUTOMATIC,
        "methods": {name: _listed_json(listed) for name, listed in _methods().items()},
        "sparsifiers": {name: _listed_json(listed) for name, listed in _sparsifiers().items()},
        "enhancers": {name: _listed_json(listed) for name, listed in _enhancers().items()},
        "refinements": {name: list(members) for name, members in REFINEMENTS.items()},
        "cleaning": {name: _listed_json(listed) for name, listed in _cleaning().items()},
        "presets": {name: recipe.to_json() for name, recipe in PRESETS.items()},
        "recipe": [
            _param_json(param) | {"help": explained(Recipe)[param.name]}
            for param in settable(Recipe).values()
        ],
        "example": EXAMPLE.to_json(),
    }


def _listed_json(listed: Listed) -> dict[str, object]:
    return {
        "summary": listed.summary,
        "kind": listed.kind,
        "paper": listed.paper or None,
        "parameters": [_param_json(param) for param in listed.params],
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
