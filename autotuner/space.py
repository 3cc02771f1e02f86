"""The candidates of a sweep: recipes with names, in the order in which they are tried.

A candidate differs from the user's recipe in what is tuned, and in nothing else: his rank, dtype and filters stay.
Recipes that lead to the same plan are one candidate, which the sweep finds out (`search.py`).
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ..merging.methods import METHODS, is_linear
from ..merging.recipe import AUTO, NONE, Recipe
from ..sparsify import SPARSIFIERS

DENSITIES = (0.5, 0.7, 0.9)
DAMPENINGS = (0.0, 0.3, 0.6)
SCALES = ("mean", "strongest")
REFINEMENTS = (NONE, "refine", "full")


def candidates(recipe: Recipe) -> dict[str, Recipe]:
    """Every candidate by name; the automatic choice comes first."""
    found: dict[str, Recipe] = {}
    for name, changes in _changes():
        found[name] = replace(recipe, **changes)
    return found


def _changes() -> Iterator[tuple[str, dict[str, object]]]:
    for scale in SCALES:
        yield f"auto, to the {scale}", {"method": AUTO, "strategy_set": "full", "global_scale": scale}
    for words in ("no_slerp", "basic"):
        yield f"auto, {words}", {"method": AUTO, "strategy_set": words, "global_scale": "mean"}
    for method, scale in product(METHODS, (*SCALES, "none")):
        told = f"{method}, {'as it is' if scale == 'none' else f'to the {scale}'}"
        base: dict[str, object] = {"method": method, "global_scale": scale}
        yield told, base
        for refinement in REFINEMENTS[1:]:
            yield f"{told}, {refinement}", base | {"enhance": refinement}
    for method, scale in product(("weighted_sum", "ties", "knots_ties"), SCALES):
        for density in DENSITIES:
            if not is_linear(METHODS[method]):
                yield (
                    f"{method} at {density:g}, to the {scale}",
                    {"method": method, "global_scale": scale, "density": density},
                )
            for sparsifier, dampening in _sparsifiers():
                told = f"{sparsifier} at {density:g}" + (f" dampened {dampening:g}" if dampening else "")
                changes: dict[str, object] = {
                    "method": method,
                    "global_scale": scale,
                    "sparsify": sparsifier,
                    "density": density,
                    "dampening": dampening,
                }
                yield f"{method}, {told}, to the {scale}", changes


def _sparsifiers() -> Iterator[tuple[str, float]]:
    for sparsifier in SPARSIFIERS:
        if sparsifier != "trim":
            dampenings = DAMPENINGS if sparsifier.startswith("dare") else (0.0,)
            yield from ((sparsifier, dampening) for dampening in dampenings)
