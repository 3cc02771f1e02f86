"""Signatures as settings, and tables of named functions: what is unknown is said with the nearest known name."""

from typing import Annotated

import pytest
import torch

from lora_alloy.core.errors import RecipeError
from lora_alloy.core.params import Choice, Span, checked, settable
from lora_alloy.core.registry import Registry


def method(
    gram: torch.Tensor,
    *,
    generator: torch.Generator,
    density: Annotated[float, Span(0.01, 1.0)] = 0.5,
    steps: Annotated[int, Span(1, 9)] = 3,
    vote: Annotated[str, Choice(("mass", "count"))] = "mass",
    is_bold: bool = False,
) -> None:
    """A method with every kind of parameter."""


def test_keyword_only_parameters_with_a_default_are_the_users():
    found = settable(method)
    assert list(found) == ["density", "steps", "vote", "is_bold"]
    assert [one.kind for one in found.values()] == [float, int, str, bool]
    assert found["density"].span == Span(0.01, 1.0)
    assert found["vote"].choice == Choice(("mass", "count"))


def test_values_are_taken_over_and_defaults_filled_in():
    found = checked(method, {"density": 1, "is_bold": True}, "a test")
    assert found == {"density": 1.0, "steps": 3, "vote": "mass", "is_bold": True}
    assert isinstance(found["density"], float)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"densty": 0.5}, "No parameter of a test is called 'densty'. Did you mean 'density'?"),
        ({"generator": 1}, "No parameter of a test is called 'generator'."),
        ({"density": 1.5}, "`density` of a test is 1.5; it must lie between 0.01 and 1."),
        ({"density": float("nan")}, "must lie between"),
        ({"density": "0.5"}, "`density` of a test must be float, not '0.5'."),
        ({"density": True}, "must be float, not True"),
        ({"steps": 2.0}, "`steps` of a test must be int, not 2.0."),
        ({"steps": 10}, "must lie between 1 and 9"),
        ({"vote": "weight"}, "`vote` of a test is 'weight'; known: mass, count."),
        ({"vote": None}, "must be str, not None"),
        ({"is_bold": 1}, "must be bool, not 1"),
        ({"is_bold": []}, r"must be bool, not \[\]"),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_refused_with_a_sentence(given, sentence):
    with pytest.raises(RecipeError, match=sentence):
        checked(method, given, "a test")


@pytest.fixture
def table() -> Registry[int]:
    return Registry("number", {"one_half": 1, "two": 2})


def test_a_registry_keeps_its_order_and_takes_hyphens(table):
    assert list(table) == ["one_half", "two"]
    assert len(table) == 2
    assert table["one-half"] == table["one_half"] == 1
    assert "one-half" in table
    assert "three" not in table
    assert 5 not in table


def test_a_registry_suggests_the_nearest_name(table):
    with pytest.raises(
        RecipeError, match="No number is called 'tow'. Did you mean 'two'. Known: one_half, two."
    ):
        table["tow"]
    with pytest.raises(RecipeError, match="No number is called 'xyz'. Known: one_half, two."):
        table["xyz"]
