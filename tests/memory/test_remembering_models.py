"""The model counts where it counts: base weights that a result depends on, and where its names lead."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lora_alloy.api import Merged, analyze, merge
from lora_alloy.cache.store import Store
from lora_alloy.lora.entries import Entry, Model
from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.full import Dense, Kron
from lora_alloy.lora.target import Route, Target
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing import exact_modules
from lora_alloy_testing.base_formats import CASES, NAME, Case, noise
from lora_alloy_testing.builders import entry_of, file_of, write_lora
from lora_alloy_testing.builders import noise as factors
from lora_alloy_testing.flux import flux_lora, fused, split

WEIGHT = "diffusion_model.block.proj"
BASED = [case for case in CASES if case.module == NAME and case.base.dim() == 2]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "memory"


def model_of(base: torch.Tensor, weight: str = WEIGHT, **more: object) -> Model:
    known = {NAME: Route(Target(weight))}
    return Model(known, {weight: tuple(base.shape)}, base=lambda _: base, **more)  # type: ignore[arg-type]


def entries(case: Case) -> list[Entry]:
    plain = file_of({NAME: factors(tuple(case.base.shape), seed=5)}, "plain")
    return [Entry(lora_in_memory("ink", case.tensors, {}), 0.8), Entry(plain, 0.5)]


def same(one: Merged, other: Merged) -> bool:
    return one.plan == other.plan and all(
        a.delta.tensors.keys() == b.delta.tensors.keys()
        and all(torch.equal(a.delta.tensors[role], b.delta.tensors[role]) for role in b.delta.tensors)
        for a, b in zip(one.patches, other.patches, strict=True)
    )


@pytest.mark.parametrize("case", BASED, ids=str)
@pytest.mark.parametrize("formula", ["", "(1+2)"])
def test_other_base_weights_give_another_result(case, formula, kept):
    recipe = Recipe(formula=formula, method="weighted_sum", auto_strength=False)
    bases = [case.base, case.base * 1.25]
    for base in bases:
        found = merge(entries(case), recipe, model=model_of(base), memory=Store(kept))
        assert not found.is_recalled
        assert same(found, merge(entries(case), recipe, model=model_of(base)))
    for base in bases:
        found = merge(entries(case), recipe, model=model_of(base), memory=Store(kept))
        assert found.is_recalled
        assert same(found, merge(entries(case), recipe, model=model_of(base)))


@pytest.mark.parametrize("case", BASED[:2], ids=str)
def test_numbers_that_depend_on_the_base_are_never_remembered(case, kept):
    for base in (case.base, case.base * 2):
        found = analyze(_built(case, base), memory=Store(kept))[1]
        expected = analyze(_built(case, base))[1]
        assert torch.equal(found[0].gram, expected[0].gram)
    assert "lora_analysis" not in Store(kept).sizes()


def _built(case: Case, base: torch.Tensor):
    from lora_alloy.lora.stack import build_stack

    return build_stack(entries(case), model_of(base))


def plain(shape: tuple[int, int] = (24, 16)) -> list[Entry]:
    return [Entry(file_of({NAME: factors(shape, seed=seed)}, f"l{seed}"), 0.7) for seed in (1, 2)]


def test_tame_looks_at_the_base_weights_and_so_do_its_keys(kept):
    recipe = Recipe(tame=0.9, tame_threshold=0.05)
    bases = [noise(24, 16, size=size, seed=1) for size in (0.01, 0.5)]
    results = [merge(plain(), recipe, model=model_of(base), memory=Store(kept)) for base in bases]
    assert not any(found.is_recalled for found in results)
    assert not same(*results)
    for base, expected in zip(bases, results, strict=True):
        found = merge(plain(), recipe, model=model_of(base), memory=Store(kept))
        assert found.is_recalled and same(found, expected)


def test_a_base_that_does_not_matter_does_not_count(kept):
    merge(plain(), model=model_of(noise(24, 16)), memory=Store(kept))
    other = model_of(noise(24, 16, seed=3), label="another.safetensors")
    found = merge(plain(), model=other, memory=Store(kept))
    assert found.is_recalled and found.stack.model is other


def test_where_names_lead_counts(kept):
    merge(plain(), model=model_of(noise(24, 16)), memory=Store(kept))
    for other in (model_of(noise(24, 16), "diffusion_model.other"), None):
        found = merge(plain(), model=other, memory=Store(kept))
        assert not found.is_recalled and same(found, merge(plain(), model=other))


@pytest.mark.parametrize(
    ("tensors", "kind"),
    [
        (exact_modules.lokr((4, 4), (6, 4), seed=1).tensors, Kron),
        ({"diff": noise(24, 16)}, Dense),
        ({"diff_b": noise(24)}, Dense),
    ],
    ids=["product", "matrix", "bias"],
)
def test_products_and_whole_matrices_come_back_as_they_are(tensors, kind, kept):
    named = {f"{NAME}.{end}": value for end, value in tensors.items()}
    entry = Entry(lora_in_memory("x", named, {}), 0.5)
    first = merge([entry], memory=Store(kept))
    second = merge([entry], memory=Store(kept))
    assert second.is_recalled and same(first, second)
    assert type(first.patches[0].delta) is type(second.patches[0].delta) is kind


def test_fused_and_split_spellings_are_kept_apart(tmp_path, kept):
    whole = write_lora(tmp_path / "a.safetensors", fused(flux_lora(1)))
    parts = write_lora(tmp_path / "b.safetensors", split(flux_lora(2)), "peft")
    other = write_lora(tmp_path / "c.safetensors", fused(flux_lora(3)))
    stacks = [[whole, other], [whole, parts], [whole], [parts, other], [whole, parts, other]]
    for chosen in stacks + stacks:
        given = [entry_of(path, 0.8) for path in chosen]
        assert same(merge(given, memory=Store(kept)), merge(given))


def test_scales_from_headers_count(tmp_path, kept):
    path = write_lora(
        tmp_path / "a.safetensors",
        {NAME: factors((24, 16), seed=1)},
        metadata={"ss_network_dim": "4", "ss_network_alpha": "1.0"},
    )
    given = [entry_of(path), *plain()]
    merge(given, memory=Store(kept))
    found = merge(given, Recipe(honour_metadata=True), memory=Store(kept))
    assert same(found, merge(given, Recipe(honour_metadata=True)))
    assert torch.equal(found.measured[0].gram, merge(given, Recipe(honour_metadata=True)).measured[0].gram)


def test_cleaned_loras_are_measured_as_such(kept):
    given = [Entry(file_of({NAME: factors((24, 16), 8, seed=seed)}, f"l{seed}"), 0.7) for seed in (1, 2)]
    kinds = [Recipe(), Recipe(star_eta=70.0), Recipe(star_eta=50.0)]
    for _ in range(2):
        for recipe in kinds:
            held = [given[0], replace(given[1], preserve=True)]
            for stack in (given, held):
                assert same(merge(stack, recipe, memory=Store(kept)), merge(stack, recipe))
