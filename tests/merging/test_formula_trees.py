"""Merges of merges: trees against their steps on dense arrays, in any order, whatever the files are called."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lora_alloy.api import merge, plan, verify
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.plan import Plan
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, dense, difference, file_of, toy_lora
from lora_alloy_testing.compositions import Composition, composed

NAMES = [name for name, (_, shape) in TOY.items() if len(shape) == 2]
STRENGTHS = [1.0, 0.6, -0.8, 0.5]
LORAS = [toy_lora(place, names=NAMES) for place in range(4)]
TREE = "((1+2):0.6+3:0.4):2+4:1.5"
PERMUTED = "3:1.5+(1:0.4+(4+2):0.6):2"  # the same tree of the stack (3, 1, 4, 2)
ORDER = [2, 0, 3, 1]


def entries(**labels: str) -> list[Entry]:
    return [
        Entry(file_of(lora, labels.get(f"of_{place}", f"ink {place}")), strength)
        for place, (lora, strength) in enumerate(zip(LORAS, STRENGTHS, strict=True))
    ]


def recipe(**more: object) -> Recipe:
    plain = {"auto_strength": False, "density": 0.5, "smoothing": 0.0, "compress": "disabled"}
    return Recipe(**plain, **{"formula": TREE, **more})  # type: ignore[arg-type]


def step(method: str, deltas: list[np.ndarray], strengths: list[float]) -> np.ndarray:
    """One level of a tree, where nothing is drawn by chance."""
    count = len(deltas)
    return composed(
        Composition(method, density=0.5), deltas, strengths, ["all"] * count, [""] * count, "anywhere"
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_tree_is_its_steps(method):
    found = dense(merge(entries(), recipe(method=method)))
    for name in NAMES:
        deltas = [lora[name].delta for lora in LORAS]
        first = step(method, deltas[:2], STRENGTHS[:2])
        second = step(method, [first, deltas[2]], [0.6, 0.4 * STRENGTHS[2]])
        wanted = step(method, [second, deltas[3]], [2.0, 1.5 * STRENGTHS[3]])
        assert difference(found[TOY[name][0]], wanted) < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_a_preserved_lora_lies_on_top_of_the_merge_that_it_is_named_in(method):
    stack = entries()
    stack[1] = replace(stack[1], preserve=True)
    found = dense(merge(stack, recipe(method=method, formula="(1+2+3):0.5+4")))
    for name in NAMES:
        deltas = [lora[name].delta for lora in LORAS]
        first = step(method, [deltas[0], deltas[2]], [STRENGTHS[0], STRENGTHS[2]]) + STRENGTHS[1] * deltas[1]
        wanted = step(method, [first, deltas[3]], [0.5, STRENGTHS[3]])
        assert difference(found[TOY[name][0]], wanted) < 1e-5


@pytest.mark.parametrize("sparsify", ["none", "dare", "della_conflict"])
@pytest.mark.parametrize("method", ["weighted_average", "karcher", "ties", "consensus", "knots_ties"])
def test_neither_order_nor_names_change_a_bit(method, sparsify):
    """What is drawn by chance for an inner merge goes by what it merges, not by what its files are called."""
    how = recipe(method=method, sparsify=sparsify)
    stack = entries(of_0="renamed", of_2="zebra")
    wanted = merge(entries(), how)
    found = merge([stack[place] for place in ORDER], replace(how, formula=PERMUTED))
    for one, other in zip(found, wanted, strict=True):
        assert one.target == other.target
        for role, tensor in one.delta.tensors.items():
            assert tensor.equal(other.delta.tensors[role])


def test_another_strength_inside_a_tree_is_another_draw():
    how = recipe(method="weighted_sum", sparsify="dare")
    stack = entries()
    stack[0] = replace(stack[0], strength=0.9)
    one, other = (next(iter(dense(merge(given, how)).values())) for given in (entries(), stack))
    assert not np.array_equal(one == 0, other == 0)


@pytest.mark.parametrize("method", ["weighted_average", "ties"])
def test_a_tree_replays_from_json_and_verifies(method, tmp_path):
    how = recipe(method=method, sparsify="dare")
    told = json.loads(json.dumps(plan(entries(), how).to_json()))
    again, first = merge(entries(), Plan.from_json(told)), merge(entries(), how)
    for one, other in zip(again, first, strict=True):
        assert one.delta.flat().equal(other.delta.flat())
    first.save(tmp_path / "out")
    assert verify(tmp_path / "out.safetensors", entries()).read_error == 0.0
