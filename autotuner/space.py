"""The candidates of a sweep: recipes with names, in the order in which they are tried.

A candidate differs from the user's recipe in what is tuned, and in nothing else: his rank, dtype and filters stay.
Recipes that do the same are one candidate, which the sweep finds out (`search.py`). Candidates that share a blend, and
differ in its scale, follow each other.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ..merging.methods import METHODS, is_linear, shares_basis
from ..merging.recipe import AUTO, NONE, Recipe
from ..sparsify import SPARSIFIERS

DENSITIES = (0.5, 0.7, 0.9)
DAMPENINGS = (0.3, 0.6)
SCALES = {
    "to the mean norm": {"global_scale": "mean", "auto_strength": False},
    "to the strongest norm": {"global_scale": "strongest", "auto_strength": False},
    "auto-strength": {"global_scale": "none", "auto_strength": True},
    "as it is": {"global_scale": "none", "auto_strength": False},
}
REFINEMENTS = {NONE: "", "refine": ", refined", "full": ", fully refined"}
# The fields of a recipe that a sweep decides.
FIELDS = (
    *("method", "strategy_set", "scope", "enhance", "sparsify", "density", "dampening"),
    *("global_scale", "auto_strength", "auto_strength_floor"),
)
SPARSE = ("weighted_sum", "ties", "consensus")  # one that adds, one that elects, one that averages


def candidates(recipe: Recipe) -> dict[str, Recipe]:
    """Every candidate by name; the automatic choice comes first."""
    return {name: replace(recipe, **changes) for name, changes in _changes(recipe)}


def _changes(recipe: Recipe) -> Iterator[tuple[str, dict[str, object]]]:
    for words, scope in product(("full", "no_slerp", "basic"), ("target", "global")):
        told = (
            "auto" + ("" if words == "full" else f" {words}") + (", everywhere" if scope == "global" else "")
        )
        yield from _scaled(told, {"method": AUTO, "strategy_set": words, "scope": scope})
    for method, (refinement, words) in product(METHODS, REFINEMENTS.items()):
        if refinement == "full" and (is_linear(METHODS[method]) or shares_basis(METHODS[method])):
            continue  # a shared basis changes nothing there, or is there anyway
        yield from _scaled(f"{method}{words}", {"method": method, "enhance": refinement})
        if is_linear(METHODS[method]) or method == "consensus":
            continue
        for density in DENSITIES:
            changes: dict[str, object] = {"method": method, "enhance": refinement, "density": density}
            yield from _scaled(f"{method} at {density:g}{words}", changes)
    for method, sparsifier, density in product(SPARSE, SPARSIFIERS, DENSITIES):
        if sparsifier == "trim":
            continue
        changes = {"method": method, "sparsify": sparsifier, "density": density}
        told = f"{method}, {sparsifier} at {density:g}"
        yield from _scaled(told, changes)
        # A norm that is given leaves nothing of a dampening; without one it is as good as a scale.
        if sparsifier.startswith("dare") and method == "weighted_sum":
            for dampening in DAMPENINGS:
                name = f"{told}, dampened {dampening:g}, as it is"
                yield name, {**changes, **SCALES["as it is"], "dampening": dampening}


def _scaled(told: str, changes: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    for words, scale in SCALES.items():
        yield f"{told}, {words}", {**changes, **scale}
