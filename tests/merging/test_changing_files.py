"""A file that changes between its header and its last value never ends up in a merge, whole or in part."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lora_alloy import api
from lora_alloy.core.errors import FileError
from lora_alloy_testing.small_loras import write_small

# More targets than are read between two looks at the files
MODULES = {
    f"lora_unet_output_blocks_{block}_0_in_layers_{layer}": (16, 16)
    for block in range(9)
    for layer in range(9)
}


@pytest.fixture
def loras(tmp_path: Path) -> list[Path]:
    return [write_small(tmp_path / f"{seed}.safetensors", MODULES, seed=seed) for seed in (1, 2)]


def replaced(path: Path) -> None:
    other = write_small(path.with_name("other"), MODULES, seed=9)
    assert other.stat().st_size == path.stat().st_size
    other.replace(path)


def overwritten(path: Path) -> None:
    other = write_small(path.with_name("other"), MODULES, seed=9)
    with path.open("r+b") as stream:
        stream.write(other.read_bytes())


def cut_off(path: Path) -> None:
    os.truncate(path, 2000)


def lengthened(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"more")


@pytest.mark.parametrize("change", [replaced, overwritten, cut_off, lengthened, Path.unlink])
@pytest.mark.parametrize("when", ["opened", "stacked", ("analyse", 70), ("merge", 5)], ids=str)
def test_a_change_stops_the_merge_by_the_name_of_the_file(
    loras: list[Path], change: Callable[[Path], None], when: object
) -> None:
    def at(place: object) -> None:
        if place == when:
            change(loras[0])

    with pytest.raises(FileError, match=r"1\.safetensors.*(run again|check its permissions)"):
        opened = [api.load(path) for path in loras]
        at("opened")
        stack = api.stack_of(opened)
        at("stacked")
        api.merge(stack, progress=lambda what, done, total: at((what, done)))


@pytest.mark.parametrize("change", [overwritten, cut_off, lengthened])
def test_a_change_after_the_last_look_is_noticed_too(
    loras: list[Path], change: Callable[[Path], None]
) -> None:
    def tell(what: str, done: int, total: int) -> None:
        if (what, done) == ("merge", len(MODULES) - 1):
            change(loras[0])

    with pytest.raises(FileError, match=r"1\.safetensors.*run again"):
        api.merge(loras, progress=tell)


def test_a_copy_in_the_place_of_the_file_before_it_is_opened_is_welcome(loras: list[Path]) -> None:
    shutil.copy(loras[1], loras[0])
    assert len(api.merge(loras)) == len(MODULES)


def test_a_file_that_is_put_away_after_the_merge_does_not_matter(loras: list[Path], tmp_path: Path) -> None:
    merged = api.merge(loras)
    loras[0].unlink()
    assert merged.save(tmp_path / "out").read_error == 0.0
