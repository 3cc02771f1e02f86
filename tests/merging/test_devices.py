"""Element-wise work on a device: whole, tiled or on the CPU, it gives the same, and asks nothing the device lacks."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lora_alloy.api import merge
from lora_alloy.core import device
from lora_alloy.core.errors import RecipeError
from lora_alloy.lora.factors import Delta, LowRank
from lora_alloy.lora.full import Dense, Kron
from lora_alloy.merging import tiles
from lora_alloy.merging.elements import blended
from lora_alloy.merging.engine import needed
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.recipe import Recipe
from lora_alloy.merging.work import Work
from lora_alloy_testing.builders import entry_of, noise, write_lora

small_device = pytest.importorskip(
    "lora_alloy_testing.small_device", reason="this PyTorch has no such devices"
)
NAME, SmallDevice = small_device.NAME, small_device.SmallDevice
SHAPE = (48, 40)
SIZE = SHAPE[0] * SHAPE[1] * 4
SETTINGS = {
    "density": 0.6,
    "dampening": 0.2,
    "divisor": "mass",
    "symmetric": False,
    "dominance": 1.0,
    "rank_limit": 256,
    "vote": "total",
    "unit": "entry",
}


def thin(seed: int, shape: tuple[int, ...] = SHAPE, rank: int = 4) -> LowRank:
    chance = torch.Generator().manual_seed(seed)
    up, down = torch.randn(shape[0], rank, generator=chance), torch.randn(rank, shape[1], generator=chance)
    return LowRank(up.half(), down.half(), 0.5, shape)


def work(
    sparsifier: str = "", *enhancers: str, masks: tuple[str, ...] = ("all",) * 3, **settings: object
) -> Work:
    told = {**SETTINGS, **settings}
    if "column_wise" in enhancers:
        told["unit"] = "row"
    return Work(
        (0, 1, 2), (0.75, -0.5, 1.25), ("a", "b", "c"), masks, sparsifier, enhancers, 1.5, 1.0, 7, told
    )  # type: ignore[arg-type]


CASES = {
    "ties": ("ties", work("trim")),
    "ties by frequency": ("ties", work("trim", vote="frequency", divisor="count")),
    "ties by rows": ("ties", work("trim", "column_wise")),
    "ties with masks": ("ties", work("trim", masks=("low_conflict", "all", "high_conflict"))),
    "ties with masks by rows": (
        "ties",
        work("trim", "column_wise", masks=("low_conflict", "all", "high_conflict")),
    ),
    "ties with TALL-masks": ("ties", work("trim", "tall_masks")),
    "ties, orthogonalised": ("ties", work("trim", "orthogonalise")),
    "ties in a shared basis": ("ties", work("trim", "knots")),
    "knots_ties": ("knots_ties", work("trim")),
    "consensus": ("consensus", work()),
    "consensus with TALL-masks": ("consensus", work("", "tall_masks")),
    "a sum of what DARE left": ("weighted_sum", work("dare")),
    "a mean of what DELLA left": ("karcher", work("della")),
    "ties of what DARE left in conflicts": ("ties", work("dare_conflict")),
    "ties of what DELLA left in conflicts": ("ties", work("della_conflict")),
}
every_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 17 rows, and a device without double precision."""
    monkeypatch.setattr(tiles, "ENTRIES", 17 * SHAPE[1])
    monkeypatch.setattr(device, "WITHOUT_DOUBLE", (NAME.type,))


def values(case: str, deltas: list[Delta], where: torch.device | str) -> Tensor:
    method, asked = CASES[case]
    with torch.no_grad():
        made = blended(deltas, asked, METHODS[method], "target", where)[0]
    assert all(tensor.device.type == "cpu" for tensor in made.tensors.values())
    return made.flat()


@every_case
def test_a_device_without_double_precision_gives_what_the_cpu_gives(case, caplog):
    caplog.set_level(logging.INFO)
    deltas: list[Delta] = [thin(seed) for seed in range(3)]
    expected = values(case, deltas, "cpu")
    with SmallDevice() as there:
        found = values(case, deltas, NAME)
    assert not caplog.records and there.peak > 2 * SIZE
    assert found.equal(expected)


@every_case
def test_tiles_and_the_cpu_take_over_where_memory_is_short(case, caplog):
    deltas: list[Delta] = [thin(seed) for seed in range(3)]
    expected = values(case, deltas, "cpu")
    with SmallDevice() as roomy:
        values(case, deltas, NAME)
    caplog.set_level(logging.INFO)
    for limit in (roomy.peak - 1, roomy.peak // 2, roomy.peak // 8, 1000, 1):
        with SmallDevice(limit) as there:
            found = values(case, deltas, NAME)
        assert there.refusals == len(caplog.records) >= 1 and there.peak <= limit
        caplog.clear()
        assert there.held == 0
        assert found.equal(expected)


def test_whole_comes_before_tiles_and_tiles_before_the_cpu(caplog):
    caplog.set_level(logging.INFO)
    deltas: list[Delta] = [thin(seed) for seed in range(3)]
    said = {}
    with SmallDevice() as roomy:
        values("ties", deltas, NAME)
    for limit in (roomy.peak, roomy.peak - 1, 100):
        caplog.clear()
        with SmallDevice(limit) as there:
            values("ties", deltas, NAME)
        said[limit] = [
            record.getMessage().removeprefix("[LoRA Alloy] ").split(" on ")[0] for record in caplog.records
        ]
        assert there.refusals == len(said[limit])
    whole, tiled = "target could not be merged whole", "target could not be merged in tiles"
    assert list(said.values()) == [[], [whole], [whole, tiled]]


def test_an_operation_that_a_device_does_not_have_is_done_on_the_cpu():
    deltas: list[Delta] = [thin(seed) for seed in range(3)]
    with SmallDevice(missing=("hardshrink",)):
        found = values("ties", deltas, NAME)
    assert found.equal(values("ties", deltas, "cpu"))


def test_any_other_failure_is_not_hidden(monkeypatch):
    def broken(*_: object, **__: object) -> Tensor:
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(METHODS["ties"], "merge", broken)
    with SmallDevice(), pytest.raises(RuntimeError, match="device-side assert"):
        values("ties", [thin(seed) for seed in range(3)], NAME)


def test_deltas_of_every_form_and_a_bias_are_worked_on():
    kron = Kron(torch.randn(6, 8), torch.randn(8, 5), 0.5, SHAPE)
    full = Dense(torch.randn(SHAPE).half(), 0.25, SHAPE)
    mixed: list[Delta] = [thin(0), kron, full]
    biases: list[Delta] = [Dense(torch.randn(50, 1), 1.0, (50,)) for _ in range(3)]
    for deltas in (mixed, biases):
        with SmallDevice():
            found = values("ties", deltas, NAME)
        assert found.equal(values("ties", deltas, "cpu"))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    shapes = {"blocks_0_q": (64, 48, 4), "blocks_0_v": (96, 160, 6), "blocks_1_q": (40, 48, 4)}
    return [
        write_lora(
            tmp_path / f"{n}.safetensors",
            {
                f"lora_unet_{name}": noise((o, i), r, seed=10 * n + r + o)
                for name, (o, i, r) in shapes.items()
            },
        )
        for n in range(3)
    ]


@pytest.mark.parametrize("limit", [float("inf"), 30_000, 100])
@pytest.mark.parametrize("method", ["ties", "consensus"])
def test_a_merge_saves_the_same_bytes_wherever_it_was_done(method, limit, files, tmp_path):
    entries = [entry_of(path, 0.8) for path in files]
    here = tmp_path / "here.safetensors"
    merge(entries, Recipe(method=method)).save(here)
    with SmallDevice(limit) as there:
        merged = merge(entries, Recipe(method=method), device=NAME)
    merged.save(tmp_path / "there.safetensors")
    assert there.held == 0
    assert (there.refusals > 0) is (limit < float("inf"))
    assert (tmp_path / "there.safetensors").read_bytes() == here.read_bytes()


@pytest.mark.parametrize("formula", ["", "(1+2)+3"])
def test_the_host_is_asked_to_make_room_first_and_for_enough(formula, files):
    entries, asked = [entry_of(path) for path in files], []
    with SmallDevice() as there:

        def make_room(size: int) -> None:
            asked.append(size)
            assert there.peak <= 4 or formula  # a look whether the device is there

        recipe = Recipe(method="ties", formula=formula)
        merged = merge(entries, recipe, device=NAME, make_room=make_room)
    assert asked[-1] == needed(merged.plan)
    assert len(asked) == (2 if formula else 1)
    assert there.peak <= max(asked)
    assert max(asked) < (4 << 20) + 14 * 96 * 160 * 4


def test_no_room_is_made_for_the_cpu_or_for_what_needs_none(files):
    entries = [entry_of(path) for path in files]
    merge(entries, Recipe(method="ties"), make_room=pytest.fail)
    with SmallDevice() as there:
        merge(entries, Recipe(method="weighted_sum"), device=NAME, make_room=pytest.fail)
    assert there.peak <= 4  # a look whether the device is there


@pytest.mark.parametrize("name", ["nowhere", "meta", "cuda:99", "cpu:x"])
def test_a_device_that_there_is_not_is_refused_before_any_work(name, files):
    with pytest.raises(RecipeError, match="no device") as refused:
        merge([entry_of(path) for path in files], device=name, progress=pytest.fail)
    assert f"`{name}`" in str(refused.value) and str(refused.value).endswith(".")
