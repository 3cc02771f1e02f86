"""A merge with a cache is the merge without it, bit for bit; and the cache keeps what does not depend on strengths."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lora_alloy.api import plan, stack_of
from lora_alloy.cache.diffs import MODES, DiffCache
from lora_alloy.core.errors import FileError
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.full import Dense, Kron
from lora_alloy.lora.stack import Entry, Stack
from lora_alloy.merging import tiles
from lora_alloy.merging.cleaning import cleaner
from lora_alloy.merging.engine import execute
from lora_alloy.merging.methods import METHODS, is_linear, shares_basis
from lora_alloy.merging.recipe import Recipe
from lora_alloy.merging.tiles import Tiles
from lora_alloy.sparsify import SPARSIFIERS
from lora_alloy_testing.builders import TOY, entry_of, toy_lora, write_lora
from lora_alloy_testing.flux import flux_lora, fused, split

DELTAS = 2 * len(TOY) + 1
RECIPES = {
    **{name: Recipe(method=name) for name in METHODS},
    **{name: Recipe(sparsify=name) for name in SPARSIFIERS},
    "TIES of TALL-masks": Recipe(method="ties", enhance="tall_masks"),
    "DARE, orthogonalised": Recipe(sparsify="dare", enhance="orthogonalise"),
    "KnOTS": Recipe(method="ties", enhance="knots"),
    "to a rank": Recipe(method="ties", rank=5),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Even toy weights have several tiles."""
    monkeypatch.setattr(tiles, "ENTRIES", 48)


def files(folder: Path) -> list[Path]:
    """Two low-rank ones, and Kronecker products on one target of theirs."""
    folder.mkdir(exist_ok=True)
    paths = [write_lora(folder / f"{seed}.safetensors", toy_lora(seed, rank=4 + seed)) for seed in range(2)]
    chance = torch.Generator().manual_seed(5)
    name = next(iter(TOY))
    first, second = torch.randn(4, 8, generator=chance), torch.randn(6, 2, generator=chance)
    save_file({f"{name}.lokr_w1": first, f"{name}.lokr_w2": second * 0.01}, folder / "kron.safetensors")
    return [*paths, folder / "kron.safetensors"]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    return stack_of(files(tmp_path_factory.mktemp("files") / "of"))


def bits(stack: Stack, recipe: Recipe, remember: DiffCache | None = None) -> list[Tensor]:
    """Every tensor of the result, and what is said of it."""
    made = []
    for patch in execute(stack, plan(stack, recipe), remember=remember):
        told = torch.tensor([patch.norm, patch.error, *(patch.projections or ())], dtype=torch.float64)
        made += [*patch.delta.tensors.values(), told]
    return made


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_mode_gives_the_same_bits(recipe, stack, tmp_path):
    expected = bits(stack, recipe)
    for mode in MODES:
        with DiffCache(mode, folder=tmp_path, spare_disk=0) as cache:
            for _ in range(2):
                assert same(bits(stack, recipe, cache), expected), mode
    assert not list(tmp_path.iterdir())


def test_candidates_share_what_was_multiplied_out(stack, tmp_path):
    with DiffCache("ram", folder=tmp_path) as cache:
        for recipe in (Recipe(method="ties"), Recipe(method="consensus"), Recipe(sparsify="della")):
            bits(stack, recipe, cache)
        assert cache.stats.misses == DELTAS and cache.stats.hits == 2 * DELTAS


@pytest.mark.parametrize(
    "recipe",
    [
        *(
            Recipe(method=name)
            for name, method in METHODS.items()
            if is_linear(method) or shares_basis(method)
        ),
        Recipe(method="ties", enhance="knots"),
    ],
    ids=lambda recipe: f"{recipe.method} {recipe.enhance}",
)
def test_what_stays_in_factors_never_asks(recipe, stack):
    def asked(*given: object) -> None:
        raise AssertionError("asked")

    assert list(execute(stack, plan(stack, recipe), remember=asked))


def test_strengths_and_names_do_not_count_and_contents_do(tmp_path):
    first, second, third = files(tmp_path / "one")
    other = tmp_path / "other.safetensors"
    other.write_bytes(first.read_bytes())
    recipe = Recipe(method="ties")
    with DiffCache("ram", folder=tmp_path) as cache:
        for entries in (
            [Entry(stack_of([first]).entries[0].file, 1.0), *stack_of([second, third]).entries],
            [entry_of(third, -0.3), entry_of(other, 0.7), entry_of(second, 0.2)],
        ):
            built = stack_of(entries)
            assert same(bits(built, recipe, cache), bits(built, recipe))
        assert (cache.stats.misses, cache.stats.hits) == (DELTAS, DELTAS)
        changed = stack_of([write_lora(tmp_path / "0.safetensors", toy_lora(9)), second, third])
        assert same(bits(changed, recipe, cache), bits(changed, recipe))
        assert (cache.stats.misses, cache.stats.hits) == (DELTAS + 4, 2 * DELTAS - 4)


def test_cleaned_and_honoured_deltas_are_others(tmp_path):
    """What a setting makes of a file's delta is not what the file's delta is."""
    told = {"ss_network_alpha": "2", "ss_network_dim": "8"}
    paths = [
        write_lora(tmp_path / "a.safetensors", toy_lora(1, rank=8), metadata=told),
        write_lora(tmp_path / "b.safetensors", toy_lora(2, rank=8)),
    ]
    values = []
    with DiffCache("ram", folder=tmp_path) as cache:
        for recipe in (
            Recipe(method="ties"),
            Recipe(method="ties", star_eta=60.0),
            Recipe(method="ties", star_eta=40.0),
            Recipe(method="ties", honour_metadata=True),
        ):
            built = stack_of(paths, honour_metadata=recipe.honour_metadata)
            built = replace(built, clean=cleaner(recipe))
            values.append(bits(built, recipe, cache))
            assert same(values[-1], bits(built, recipe))
    assert not any(same(one, other) for one, other in combinations(values, 2))


@pytest.mark.parametrize("naming", [fused, split], ids=["fused", "split"])
def test_parts_of_a_fused_weight_are_told_apart(naming, tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "ENTRIES", 1 << 14)
    paths = [
        write_lora(tmp_path / "a.safetensors", fused(flux_lora(1))),
        write_lora(tmp_path / "b.safetensors", naming(flux_lora(2))),
    ]
    stack, recipe = stack_of(paths), Recipe(method="ties")
    expected = bits(stack, recipe)
    with DiffCache("disk", folder=tmp_path, spare_disk=0) as cache:
        for _ in range(2):
            assert same(bits(stack, recipe, cache), expected)
        assert cache.stats.hits == cache.stats.misses > 0


def test_convolutions_and_text_encoders_are_kept_too(tmp_path):
    paths = [write_lora(tmp_path / f"{seed}.safetensors", toy_lora(seed)) for seed in range(3)]
    stack, recipe = stack_of(paths), Recipe(method="ties")
    with DiffCache("ram", folder=tmp_path) as cache:
        for _ in range(2):
            assert same(bits(stack, recipe, cache), bits(stack, recipe))
        assert cache.stats.misses == 3 * len(TOY)


def test_results_that_are_made_again_later_need_no_cache(stack, tmp_path):
    recipe = Recipe(method="ties", compress="disabled")
    decided = plan(stack, recipe)
    with DiffCache("ram", folder=tmp_path) as cache:
        lazily = list(execute(stack, decided, is_lazy=True, remember=cache))
    whole = list(execute(stack, decided))
    assert all(one.delta.flat().equal(other.delta.flat()) for one, other in zip(lazily, whole, strict=True))


def test_a_file_that_changed_is_still_noticed(tmp_path):
    paths = files(tmp_path / "of")
    stack = stack_of(paths)
    decided = plan(stack, Recipe(method="ties"))
    with DiffCache("ram", folder=tmp_path) as cache:
        list(execute(stack, decided, remember=cache))
        paths[0].write_bytes(paths[0].read_bytes() + b" ")
        with pytest.raises(FileError, match="changed"):
            list(execute(stack, decided, remember=cache))


def odd(delta: Callable[[torch.Generator], LowRank | Kron], seed: int = 3) -> LowRank | Kron:
    return delta(torch.Generator().manual_seed(seed))


def _low(rows: int, columns: int, rank: int) -> Callable[[torch.Generator], LowRank]:
    def drawn(chance: torch.Generator) -> LowRank:
        up = torch.randn(rows, rank, generator=chance).half()
        return LowRank(up, torch.randn(rank, columns, generator=chance).half(), 0.37, (rows, columns))

    return drawn


@pytest.mark.parametrize("size", [(700, 1001, 17), (31, 20_001, 3), (130, 4099, 300), (2000, 333, 1)])
def test_a_delta_is_the_same_beside_others_alone_and_read_back(size, monkeypatch):
    """Products are written to places of every alignment; the bits must not depend on it."""
    monkeypatch.setattr(tiles, "ENTRIES", 1 << 18)
    deltas = [odd(_low(*size), seed) for seed in range(3)]
    together = [tile.clone() for tile in Tiles(deltas).walk()]
    for place, delta in enumerate(deltas):
        alone = torch.cat([tile[0].clone() for tile in Tiles([delta]).walk()])
        assert alone.equal(torch.cat([tile[place] for tile in together]))
        kept = Dense(alone, 1.0, delta.shape)
        assert torch.cat([tile[0].clone() for tile in Tiles([kept]).walk()]).equal(alone)


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tiles_of_a_whole_matrix_are_its_rows(dtype, scale):
    whole = torch.randn(30, 20, generator=torch.Generator().manual_seed(0)).to(dtype)

    def joined(walk: Iterator[Tensor]) -> Tensor:
        return torch.cat([tile[0].clone() for tile in walk])

    assert joined(Tiles([Dense(whole, scale, (30, 20))]).walk()).equal(whole.float() * scale)
