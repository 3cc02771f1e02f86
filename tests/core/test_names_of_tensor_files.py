"""What a file is shows in its first bytes; its name only tells PyTorch's old kinds of archive apart."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from lora_alloy.core.errors import FileError
from lora_alloy.core.tensorfile import open_tensors

ONES = {"a": torch.ones(2, 2)}


@pytest.mark.parametrize(
    "name", ["a.pt", "a.ckpt", "a.bin", "a.sft", "a.SAFETENSORS", "a", "a.safetensors.1"]
)
def test_a_safetensors_file_is_one_whatever_it_is_called(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(save(ONES))
    assert torch.equal(open_tensors(tmp_path / name).read("a"), ONES["a"])


@pytest.mark.parametrize(
    "wrapped",
    [
        ONES,
        {"state_dict": ONES, "epoch": 3},
        {"model": ONES, "step": 3},
        {"lora": {"model": ONES}, "name": "ink"},
    ],
    ids=["plain", "state_dict", "model", "deeper"],
)
def test_tensors_of_an_old_file_are_found_under_what_scripts_wrap_them_in(tmp_path: Path, wrapped: object):
    torch.save(wrapped, tmp_path / "a.pt")
    assert list(open_tensors(tmp_path / "a.pt").infos) == ["a"]


def test_dictionaries_without_end_come_to_one(tmp_path: Path):
    endless: dict[str, object] = {}
    endless["again"] = endless
    torch.save(endless, tmp_path / "a.pt")
    assert not open_tensors(tmp_path / "a.pt").infos


def test_a_text_file_that_is_called_a_pickle_is_text(tmp_path: Path):
    (tmp_path / "a.pt").write_text("Entry not found")
    with pytest.raises(FileError, match="is text, not a LoRA; it begins with `Entry not found`"):
        open_tensors(tmp_path / "a.pt")
