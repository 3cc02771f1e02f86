"""The same input gives the same bytes of the saved file: in every order, run, process, and thread count."""

import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
import torch

import lora_alloy_testing
from lora_alloy.api import merge
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.presets import PRESETS
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import TOY, Factors, entry_of, noise, toy_lora, write_lora
from lora_alloy_testing.flux import flux_lora, fused, split

SCRIPT = Path(lora_alloy_testing.__path__[0]) / "merge_once.py"
RECIPES = {
    **{name: Recipe(method=name) for name in METHODS},
    **{f"{name} preset": PRESETS[name] for name in PRESETS},
    "truncated": Recipe(rank=3),
    "to a tolerance": Recipe(tolerance=0.2),
    "in half precision": Recipe(dtype="float16"),
}


def saved(entries: list[Entry], recipe: Recipe, path: Path, naming: str = "comfyui") -> bytes:
    merge(entries, recipe).save(path, naming=naming)
    return path.read_bytes()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    told = {"modelspec.trigger_phrase": "ink"}
    return [
        write_lora(tmp_path / "b.safetensors", toy_lora(1, rank=4, alpha=2.0), metadata=told),
        write_lora(tmp_path / "a.safetensors", toy_lora(2, rank=8, names=list(TOY)[1:])),
        write_lora(
            tmp_path / "d.safetensors", toy_lora(3, rank=2), "peft", {"modelspec.trigger_phrase": "oil"}
        ),
        write_lora(tmp_path / "c.safetensors", toy_lora(4, rank=6)),
    ]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("strengths", [(1.0, 1.0, 1.0, 1.0), (0.9, -0.5, 0.7)], ids=["equal", "own"])
def test_every_order_of_the_stack_saves_the_same_bytes(recipe, strengths, files, tmp_path):
    entries = [
        entry_of(path, w, preserve=place == 1)
        for place, (path, w) in enumerate(zip(files, strengths, strict=False))
    ]
    first = saved(entries, recipe, tmp_path / "out.safetensors")
    for order in list(permutations(entries))[:: 5 if len(entries) == 4 else 1]:
        assert saved(list(order), recipe, tmp_path / "out.safetensors") == first


@pytest.mark.parametrize("naming", ["comfyui", "kohya", "diffusers"])
def test_every_order_of_fused_and_split_loras_saves_the_same_bytes(naming, tmp_path):
    entries = [
        entry_of(write_lora(tmp_path / "a.safetensors", fused(flux_lora(1))), 0.8),
        entry_of(write_lora(tmp_path / "b.safetensors", split(flux_lora(2)), "peft"), 0.8),
        entry_of(write_lora(tmp_path / "c.safetensors", split(flux_lora(3), ""), "peft"), 0.8),
    ]
    found = {
        saved(list(order), Recipe(), tmp_path / "out.safetensors", naming) for order in permutations(entries)
    }
    assert len(found) == 1


def test_every_order_of_unknown_modules_saves_the_same_bytes(tmp_path):
    names = ("blocks.0.q", "diffusion_model.blocks.0.q", "transformer.blocks.0.q")
    entries = [
        entry_of(write_lora(tmp_path / f"{n}.safetensors", {name: noise((24, 16), 4, seed=n)}))
        for n, name in enumerate(names)
    ]
    found = {saved(list(order), Recipe(), tmp_path / "out.safetensors") for order in permutations(entries)}
    assert len(found) == 1


def test_scales_and_coefficients_are_the_same_to_the_last_bit_in_every_order(tmp_path):
    """More than bytes can show: the mean of many norms, and sums over strengths, in float64."""
    paths = [write_lora(tmp_path / f"{n}.safetensors", toy_lora(n, rank=2)) for n in range(5)]
    entries = [entry_of(path, 0.1 * (n + 1)) for n, path in enumerate(paths)]
    found = set()
    for order in list(permutations(entries))[::7]:
        plan = merge(list(order), PRESETS["balanced"]).plan
        found.add(
            (
                tuple(branch.scale for branch in plan.scales),
                tuple(
                    frozenset(
                        (plan.sources[entry].label, one)
                        for entry, one in zip(target.entries, target.coefficients, strict=True)
                    )
                    for target in plan.targets
                ),
            )
        )
    assert len(found) == 1


def test_the_name_of_the_output_and_the_time_do_not_matter(files, tmp_path):
    one = saved([entry_of(path) for path in files], Recipe(), tmp_path / "one.safetensors")
    os.utime(files[0], (1, 1))
    assert saved([entry_of(path) for path in files], Recipe(), tmp_path / "sub" / "two.safetensors") == one


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three LoRAs of sizes at which products and decompositions are split among threads."""
    folder = tmp_path_factory.mktemp("large")
    shapes: dict[str, tuple[int, int, int]] = {
        "q": (320, 320, 8),
        "k": (640, 1280, 16),
        "v": (1024, 1024, 24),
    }
    made: list[str] = []
    for n in range(3):
        lora: dict[str, Factors] = {
            f"lora_unet_blocks_0_{name}": noise((o, i), r, seed=10 * n + r)
            for name, (o, i, r) in shapes.items()
        }
        made.append(f"{write_lora(folder / f'{n}.safetensors', lora)}:{0.7 + 0.2 * n}")
    return made


def test_thread_counts_and_processes_save_the_same_bytes(large, tmp_path):
    recipes = ["auto:20", "slerp:0"]
    runs: list[tuple[Path, subprocess.Popen[bytes]]] = []
    for threads in (1, 2, 4):
        folder = tmp_path / str(threads)
        command = [sys.executable, str(SCRIPT), str(threads), str(folder), *recipes, "--", *large]
        variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(threads)}
        runs.append((folder, subprocess.Popen(command, env=variables)))
    assert [process.wait(120) for _, process in runs] == [0, 0, 0]
    for recipe in recipes:
        method, rank = recipe.split(":")
        here = tmp_path / "here.safetensors"
        merge(list(large), Recipe(method=method, rank=int(rank))).save(here)
        for folder, _ in runs:
            assert (folder / f"{method}-{rank}.safetensors").read_bytes() == here.read_bytes(), folder.name


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_threads_within_one_process_save_the_same_bytes(threads, large, tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        merge(list(large), Recipe(rank=20)).save(tmp_path / "one.safetensors")
        torch.set_num_threads(threads)
        merge(list(large), Recipe(rank=20)).save(tmp_path / "many.safetensors")
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "many.safetensors").read_bytes()
