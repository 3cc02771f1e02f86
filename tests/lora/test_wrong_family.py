"""LoRAs of different families, or of another than the model's, are refused before their tensors are read."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from lora_alloy.api import merge
from lora_alloy.core.errors import StackError
from lora_alloy.lora.base import open_base
from lora_alloy.lora.file import open_lora
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy_testing.base_formats import noise
from lora_alloy_testing.small_loras import SD15, SDXL, write_small

COUNTER = Path("/proc/self/io")


def bytes_read() -> int:
    """What this process has read from files so far."""
    return int(COUNTER.read_text().split()[1])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An SDXL model of one layer."""
    path, layer = tmp_path / "xl.safetensors", "input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight"
    save_file({f"model.diffusion_model.{layer}": noise(640, 2048)}, path)
    return path


@pytest.mark.skipif(not COUNTER.exists(), reason="this system does not count what a process reads")
def test_two_families_are_refused_with_both_and_no_tensor_is_read(tmp_path):
    new = write_small(tmp_path / "new.safetensors", SDXL, rank=64)
    old = write_small(tmp_path / "old.safetensors", SD15, rank=64)
    entries = [Entry(open_lora(path)) for path in (new, old)]
    before = bytes_read()
    with pytest.raises(StackError) as problem:
        build_stack(entries)
    assert bytes_read() - before < 10_000
    for words in ("new.safetensors", "Stable Diffusion XL", "old.safetensors", "Stable Diffusion 1.5"):
        assert words in str(problem.value)


@pytest.mark.skipif(not COUNTER.exists(), reason="this system does not count what a process reads")
def test_a_family_that_is_not_the_models_is_refused_with_both_and_no_tensor_is_read(tmp_path, base):
    old = Entry(open_lora(write_small(tmp_path / "old.safetensors", SD15, rank=64)))
    model = open_base(base)
    before = bytes_read()
    with pytest.raises(StackError) as problem:
        build_stack([old], model)
    assert bytes_read() - before < 10_000
    for words in ("`old.safetensors` is for Stable Diffusion 1.5", "the model is Stable Diffusion XL"):
        assert words in str(problem.value)


def test_a_lora_that_cancels_itself_is_of_no_family_that_could_be_wrong(tmp_path):
    new = write_small(tmp_path / "new.safetensors", SDXL)
    old = write_small(tmp_path / "old.safetensors", SD15)
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(old.read_bytes())
    stack = build_stack([Entry(open_lora(new)), Entry(open_lora(old), 1.0), Entry(open_lora(copy), -1.0)])
    assert [entry.file.label for entry in stack.entries] == ["new.safetensors"]


def test_a_lora_without_strength_is_of_no_family_that_could_be_wrong(tmp_path):
    new = write_small(tmp_path / "new.safetensors", SDXL)
    old = write_small(tmp_path / "old.safetensors", SD15)
    assert len(build_stack([Entry(open_lora(new)), Entry(open_lora(old), 0.0)]).entries) == 1


def test_files_of_one_size_and_two_families_are_refused_all_the_same(tmp_path):
    new = write_small(tmp_path / "new.safetensors", SDXL)
    old = write_small(tmp_path / "old.safetensors", SD15)
    old.write_bytes(padded(old.read_bytes(), new.stat().st_size))
    assert old.stat().st_size == new.stat().st_size
    with pytest.raises(StackError, match="mixes LoRAs of 2 model families"):
        merge([str(new), str(old)])


def padded(raw: bytes, size: int) -> bytes:
    """A safetensors file whose header is filled up with blanks to a size of the whole."""
    length = int.from_bytes(raw[:8], "little")
    blanks = b" " * (size - len(raw))
    return (length + len(blanks)).to_bytes(8, "little") + raw[8 : 8 + length] + blanks + raw[8 + length :]
