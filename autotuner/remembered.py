"""A finished ranking as JSON values, and back: what is remembered of a sweep between runs."""

from collections.abc import Mapping
from typing import Any

import torch

from ..core.jsonvalues import as_flag, as_list, as_number, as_object, as_text
from ..merging.recipe import Recipe
from .scores import Errors
from .search import Candidate, Tuned

VERSION = 1


def ranking_to_json(found: Tuned) -> dict[str, Any]:
    """The ranking; errors are in the order of the stack's entries."""
    return {
        "version": VERSION,
        "tried": found.tried,
        "notes": list(found.notes),
        "candidates": [_to_json(one) for one in found.ranked],
    }


def _to_json(one: Candidate) -> dict[str, Any]:
    return {
        "name": one.name,
        "recipe": one.recipe.to_json(),
        "predicted": one.predicted,
        "spread": one.spread,
        "own": _numbers(one.errors.own.tolist()),
        "foreign": _numbers(one.errors.foreign.tolist()),
        "is_sampled": one.is_sampled,
        "measured": one.measured,
        "same": list(one.same),
    }


def _numbers(values: list[float]) -> list[float | None]:
    return [None if value != value else value for value in values]


def ranking_from_json(given: object, count: int) -> tuple[tuple[Candidate, ...], int, tuple[str, ...]]:
    """The candidates, how many recipes they were, and the notes.

    Args:
        given: of `ranking_to_json`.
        count: how many entries the stack has.

    Raises:
        KeyError: a field is missing.
        ValueError: a value is of another kind.
        RecipeError: a recipe asks for what is unknown.
    """
    fields = as_object(given)
    if fields["version"] != VERSION:
        raise ValueError("another version")
    found = tuple(_from_json(as_object(one), count) for one in as_list(fields["candidates"]))
    if not found or found[0].measured is None:
        raise ValueError("no candidate")
    return found, int(as_number(fields["tried"])), tuple(map(as_text, as_list(fields["notes"])))


def _from_json(fields: Mapping[str, Any], count: int) -> Candidate:
    own, foreign = (_tensor(as_list(fields[name]), count) for name in ("own", "foreign"))
    measured = fields["measured"]
    return Candidate(
        name=as_text(fields["name"]),
        recipe=Recipe.from_json(as_object(fields["recipe"])),
        predicted=as_number(fields["predicted"]),
        spread=as_number(fields["spread"]),
        errors=Errors(own, foreign),
        is_sampled=as_flag(fields["is_sampled"]),
        measured=None if measured is None else as_number(measured),
        same=tuple(map(as_text, as_list(fields["same"]))),
    )


def _tensor(values: list[Any], count: int) -> torch.Tensor:
    if len(values) != count:
        raise ValueError("not one error an entry")
    return torch.tensor(
        [float("nan") if value is None else as_number(value) for value in values], dtype=torch.float64
    )
