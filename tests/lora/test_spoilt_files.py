"""Whatever a file holds, under whatever names, for whatever base weight: all of it is accounted for, or a sentence.

The files are modules of every format, spoilt by chance, the same every time; a longer run takes other seeds.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from safetensors.torch import save_file
from torch import Tensor

from lora_alloy import api, proving
from lora_alloy.core.errors import AlloyError
from lora_alloy.lora.entries import Entry
from lora_alloy.lora.file import LoraFile, open_lora
from lora_alloy.lora.inspection import inspect_file
from lora_alloy.lora.stack import build_stack
from lora_alloy.merging.recipe import Recipe
from lora_alloy.nodes import optimizing
from lora_alloy_testing.mutations import mutated, spoilt_model

SEEDS = range(300)
LONGEST = 4000
T = TypeVar("T")


def attempt(work: Callable[[], T]) -> T | None:
    """What `work` gives, or None where it ends in a sentence; anything else that it raises is a failure."""
    try:
        return work()
    except AlloyError as problem:
        assert 20 < len(str(problem)) < LONGEST and str(problem).rstrip().endswith((".", ")")), str(problem)
        return None


def recipe_of(seed: int) -> Recipe:
    methods = ("auto", "weighted_sum", "slerp", "karcher", "weighted_average")
    return Recipe(
        method=methods[seed % len(methods)],
        rank=3 * (seed % 3 == 0),
        partial=seed % 2 == 0,
        auto_strength=seed % 4 < 2,
    )


@pytest.mark.parametrize("tens", range(0, len(SEEDS), 50))
def test_every_command_ends_well_or_with_a_sentence(tmp_path: Path, tens: int):
    for seed in range(tens, tens + 50):
        spoil(tmp_path, seed)


def spoil(folder: Path, seed: int) -> None:
    """Take one spoilt file, beside another one, through all that is done with files."""
    made, tensors, chance = mutated(seed)
    if not tensors:
        return
    path, beside, out = (folder / f"{name}.safetensors" for name in ("ink", "beside", "out"))
    save_file(tensors, path)
    save_file(
        {name: value.clone().contiguous() for name, value in mutated(seed + 1)[0].tensors.items()}, beside
    )
    model, recipe = spoilt_model(made.base, chance), recipe_of(seed)
    inspected = attempt(lambda: inspect_file(path))
    if inspected is not None:
        json.dumps(inspected.to_json())
        counted = inspected.used_count + sum(inspected.skipped.values()) + len(inspected.unknown)
        assert counted == len(tensors)
    if attempt(lambda: open_lora(path)) is None:
        return
    for given in (None, model):
        merged = attempt(lambda: api.merge([str(path)], recipe, model=given))  # noqa: B023
        if merged is not None:
            # The node's report begins with this one.
            text = optimizing._told(merged, [], 1.0, 1.0, False)
            assert merged.report.text() in text
            assert inspected is None or not inspected.unknown or "that nobody here knows" in text
            if attempt(lambda: merged.save(out)) is not None:  # noqa: B023
                assert attempt(lambda: proving.verify(out, [str(path)], model=given)) is not None  # noqa: B023
        attempt(lambda: api.merge([str(path), (str(beside), -0.5)], recipe, model=given))  # noqa: B023
        attempt(lambda: api.rewrite(path, rank=2 * (seed % 2), model=given))  # noqa: B023
    attempt(lambda: api.analyze([str(path), str(beside)]))


@pytest.mark.parametrize("tens", range(0, 1500, 500))
def test_nothing_passes_unmentioned(tmp_path: Path, tens: int):
    for seed in range(tens, tens + 500):
        _, tensors, _ = mutated(seed)
        if tensors:
            path = tmp_path / "ink.safetensors"
            save_file(tensors, path)
            mention(path, tensors)


def mention(path: Path, tensors: dict[str, Tensor]) -> None:
    file = attempt(lambda: open_lora(path))
    if file is None:
        return
    assert sorted(account.tensor for account in file.accounts) == sorted(tensors)
    used = {info.name for module in file.modules.values() for info in module.roles.values()}
    used |= {scale for scale, factor in file.scales.items() if factor in used}
    assert {account.tensor for account in file.accounts if account.state == "used"} == used
    assert all(account.reason for account in file.accounts if account.state == "skipped")
    inspected = inspect_file(path)
    said = " ".join(inspected.problems)
    unknown = sum(account.state == "unknown" for account in file.accounts)
    assert len(inspected.unknown) == unknown
    assert not unknown or f"{unknown} tensors are known to nobody here" in said
    assert not file.unread or "modules are not read" in said
    partial = attempt(lambda: build_stack([Entry(file)], partial=True))
    if partial is not None:
        told = " ".join(partial.notes)
        assert not unknown or f"{unknown} tensors that nobody here knows" in told
        assert not file.unread or "modules are not read" in told
        assert told.count("a partial merge was asked for") == bool(unread(file))


def unread(file: LoraFile) -> bool:
    """Whether a merge without a base model loses anything of the file that is known."""
    return bool(file.unread) or any(module.base_reason for module in file.modules.values())


def test_the_mutations_reach_all_outcomes(tmp_path: Path):
    """A fuzz that only ever meets refusals proves nothing."""
    seen = set()
    for seed in range(120):
        _, tensors, _ = mutated(seed)
        if not tensors:
            continue
        save_file(tensors, tmp_path / "ink.safetensors")
        file = attempt(lambda: open_lora(tmp_path / "ink.safetensors"))
        seen.add("refused" if file is None else "opened")
        if file is not None:
            seen |= {account.state for account in file.accounts}
            merged = attempt(lambda: api.merge([Entry(file)]))  # noqa: B023
            seen.add("merged" if merged is not None else "not merged")
    assert seen == {"refused", "opened", "used", "skipped", "unknown", "merged", "not merged"}
