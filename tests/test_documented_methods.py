"""The page on methods tells of every one there is, and has the numbers that the bench measured."""

import re
from pathlib import Path

import pytest

from lora_alloy.enhance import ENHANCERS, star, tame
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.recipe import REFINEMENTS
from lora_alloy.sparsify import SPARSIFIERS

DOCS = Path(__file__).resolve().parents[1] / "docs"
CLEANING = {"star": star, "tame": tame}
MODULES = {**METHODS, **SPARSIFIERS, **ENHANCERS, **CLEANING}
TEXT = (DOCS / "methods.md").read_text(encoding="utf-8")
NUMBERS = re.compile(r"`([^`\n]+)`: Q (\S+) hot, (\S+) gentle")


def sections() -> dict[str, str]:
    """What stands under each heading of a name."""
    return {
        part.split("`")[0]: re.split(r"^## ", part, flags=re.MULTILINE)[0]
        for part in re.split(r"^### `", TEXT, flags=re.MULTILINE)[1:]
    }


def measured() -> dict[str, list[str]]:
    """Q of every recipe on the bench's own page, hot and gentle."""
    found: dict[str, list[str]] = {}
    page = (DOCS / "quality.md").read_text(encoding="utf-8")
    for zoo in page.split("\n## The ")[1:]:
        for line in zoo.split("\n### ")[0].splitlines():
            if match := re.match(r"\| \**([^|*]+?)\** \| (-?\d\.\d{3}) \[", line):
                first, _, same = match[1].partition(" (= ")
                for name in (first, *same.rstrip(")").split("; ")):
                    found.setdefault(name, []).append(match[2])
    return found


def test_every_method_sparsifier_and_enhancer_has_a_section_and_nothing_else():
    assert set(sections()) == {"auto", *MODULES, *REFINEMENTS["full"]}


@pytest.mark.parametrize("name", sections())
def test_a_section_says_when_how_good_and_how_dear(name):
    section = sections()[name]
    for point in ("When", "Measured", "Cost"):
        assert re.search(rf"^- {point}: \S", section, re.MULTILINE), f"{name} does not say: {point}"
    assert name == "tame" or NUMBERS.search(section)


@pytest.mark.parametrize("name", MODULES)
def test_a_section_names_the_papers(name):
    for paper in re.findall(r"arXiv:[\d.]+\d", MODULES[name].PAPER):
        parent = name.removesuffix("_conflict")
        assert paper in sections()[name] or paper in sections()[parent], f"{name}: {paper}"


def test_the_numbers_are_those_of_the_bench_and_a_dash_where_it_has_none():
    told, found = NUMBERS.findall(TEXT), measured()
    assert len(told) > 30
    for name, hot, gentle in told:
        assert [hot, gentle] == found.get(name, ["–", "–"]), name
