"""What scripts and other packs may hand to the nodes by mistake: a sentence, never a traceback."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lora_alloy.core.errors import AlloyError, FileError, RecipeError, SaveError, StackError
from lora_alloy.merging.recipe import Recipe
from lora_alloy.merging.settings import recipe_of
from lora_alloy.nodes import bridge, optimizing, session
from lora_alloy.nodes.optimizing import optimize
from lora_alloy.nodes.save_merged_lora import SaveMergedLoRA
from lora_alloy.nodes.stack_entries import read_stack

MANY = {"tensor": torch.zeros(2), "array": np.zeros(2)}


@pytest.mark.parametrize("several", MANY.values(), ids=MANY)
def test_several_values_in_place_of_one_are_refused_by_name(several: object) -> None:
    for element, says in (
        (("a", several, 1.0), "has a strength that is"),
        (("a", 1.0, several), "has a CLIP strength that is"),
        (("a", 1.0, 1.0, "all", "all", several), "`preserve` that is .* neither true nor false"),
        ({"lora": "a", "strength": 1.0, "on": several}, "`on` is .* neither true nor false"),
    ):
        with pytest.raises(StackError, match=says):
            read_stack([element])


@pytest.mark.parametrize("several", MANY.values(), ids=MANY)
def test_another_packs_half_finished_merge_is_left_out_whatever_it_is(several: object) -> None:
    entries, notes = read_stack([{"name": "a", "strength": 1.0, "_precomputed_diffs": several}])
    assert entries == [] and "half-finished merge" in notes[0]


def test_what_is_quoted_of_a_stack_is_short() -> None:
    long = "x" * 100_000
    for element in ((long, "y" * 100_000, 1.0), (long, 1.0), {"name": long, "strength": 1.0, "on": False}):
        try:
            said = " ".join(read_stack([element])[1])
        except StackError as problem:
            said = str(problem)
        assert len(said) < 1000


@pytest.mark.parametrize(
    "tensors",
    [
        {"a.lora_up.weight": 5},
        {"a.lora_up.weight": np.ones((4, 2))},
        {"a.lora_up.weight": torch.ones(4, 2).to_sparse()},
        {"a.lora_up.weight": torch.empty(4, 2, device="meta")},
        {5: torch.ones(4, 2)},
    ],
    ids=["a number", "an array", "sparse", "without values", "without a name"],
)
def test_what_stands_in_place_of_tensors_is_refused_by_name(tensors: dict[object, object]) -> None:
    entries, _ = read_stack([{"name": "ink", "lora": tensors, "strength": 1.0}])
    with pytest.raises(FileError, match="of `ink` is no plain tensor with a name"):
        optimizing._entry(entries[0])


@pytest.mark.parametrize("name", ["/" + "y" * 5000 + ".safetensors", "y" * 100_000, "\ud83c", "a\0b"])
def test_a_name_that_no_file_can_have_is_not_installed(install: Callable[..., Path], name: str) -> None:
    install("a.safetensors")
    with pytest.raises(StackError, match="is installed") as problem:
        optimize_nothing([(name, 1.0, 1.0)])
    assert len(str(problem.value)) < 1000


def optimize_nothing(stack: object) -> None:
    for entry in read_stack(stack)[0]:
        optimizing._entry(entry)


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), 1e30, -1e30, "loud", None, [1.0], torch.zeros(2)],
    ids=str,
)
@pytest.mark.parametrize("name", ["output_strength", "clip_strength_multiplier"])
def test_a_strength_that_a_link_brings_is_checked_like_a_widget(name: str, value: object) -> None:
    strengths: dict[str, object] = {"output_strength": 1.0, "clip_strength_multiplier": 1.0, name: value}
    with pytest.raises(StackError, match=f"`{name}` is"):
        optimize(object(), None, [], Recipe(), **strengths)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (5, "The settings are a int"),
        ("x", "The settings are a str"),
        ({"auto_strength_floor": "x"}, "`auto_strength_floor` is 'x', not a number"),
        ({"auto_strength_floor": torch.zeros(2)}, "`auto_strength_floor` is tensor"),
        ({"auto_strength_floor": float("nan")}, "`auto_strength_floor` is nan"),
        ({"auto_strength": "maybe"}, "auto_strength = 'maybe'"),
        ({"auto_strength": None}, "auto_strength = None"),
        ({"mode": torch.zeros(2)}, "Settings of the mode tensor"),
        ({"sparsification": np.zeros(2)}, "sparsification = array"),
        ({"optimization_mode": torch.zeros(2)}, "optimization_mode = tensor"),
        ({"merge_strategy_override": ["ties"]}, r"Known: .*knots_ties\. Set them back"),
    ],
    ids=str,
)
def test_settings_of_another_kind_are_a_sentence(settings: object, says: str) -> None:
    with pytest.raises(AlloyError, match=says) as problem:
        recipe_of(settings)  # type: ignore[arg-type]
    assert str(problem.value).endswith(".") and ".." not in str(problem.value)


def test_settings_may_say_yes_and_no_in_either_way() -> None:
    assert recipe_of({"auto_strength": True}) == recipe_of({"auto_strength": "enabled"}) == Recipe()
    off = Recipe(auto_strength=False)
    assert recipe_of({"auto_strength": False}) == recipe_of({"auto_strength": "disabled"}) == off
    assert recipe_of({"auto_strength_floor": None}) == Recipe()
    with pytest.raises(RecipeError):
        recipe_of({"auto_strength_floor": 5})


@pytest.mark.parametrize("data", [5, "x", [], (1, 2), {"lora_alloy.merged": 5}], ids=str)
def test_data_of_another_kind_are_not_of_this_pack(data: object) -> None:
    with pytest.raises(SaveError, match="not of this pack"):
        SaveMergedLoRA().save_lora(data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["y" * 300, "y/" * 500 + "z", "y/" * 2000 + "z", "\ud83c", "x/", "x/.safetensors", "x/..", "x/ "]
)
def test_a_name_that_no_file_can_have_is_refused_in_a_sentence(
    install: Callable[..., Path], name: str
) -> None:
    root = install("a.safetensors")
    with pytest.raises(SaveError):
        bridge.save_path(str(root), name)
    assert [path.name for path in root.iterdir()] == ["a.safetensors"]


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no time of change of its own")
def test_a_file_replaced_in_place_with_its_old_time_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "ink.safetensors"
    path.write_bytes(b"old")
    stat = path.stat()
    before = session.content_hash(path)
    time.sleep(0.02)
    with path.open("r+b") as stream:
        stream.write(b"new")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert session.content_hash(path) != before
