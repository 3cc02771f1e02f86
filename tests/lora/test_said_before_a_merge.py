"""What an inspection, or opening a file, says before a merge would stumble over it."""

import struct

import pytest
import torch
from safetensors.torch import save_file

from lora_alloy.cli.described import described
from lora_alloy.core.errors import FileError
from lora_alloy.lora.file import lora_in_memory, open_lora
from lora_alloy.lora.inspection import inspect_file, inspect_opened
from lora_alloy.lora.keys import resolve
from lora_alloy_testing.small_loras import SDXL, write_small

NAME = "lora_unet_foo"


def factors(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    up, down = torch.ones(6, 2), torch.ones(2, 8)
    return {f"{NAME}.lora_up.weight": up.to(dtype), f"{NAME}.lora_down.weight": down.to(dtype)}


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.int8, torch.int32, torch.uint8, torch.complex64, torch.float8_e8m0fnu],
    ids=str,
)
def test_factors_that_no_merge_can_read_are_a_problem(tmp_path, dtype):
    path = tmp_path / "ink.safetensors"
    save_file(factors(dtype), str(path))
    assert any("a merge refuses the file" in problem for problem in inspect_file(path).problems)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_factors_that_are_numbers_are_none(tmp_path, dtype):
    path = tmp_path / "ink.safetensors"
    save_file(factors(dtype), str(path))
    assert not any("refuses" in problem for problem in inspect_file(path).problems)


def scale_of(tensors: dict[str, torch.Tensor]) -> str:
    return dict(described(inspect_opened(lora_in_memory("ink", tensors, {}))))["scale"]


def test_an_alpha_that_is_no_number_is_said_where_the_scale_stands():
    assert scale_of(factors() | {f"{NAME}.alpha": torch.tensor(float("nan"))}) == (
        "1 module with an alpha that is no number"
    )


def test_an_alpha_that_limits_a_rotation_is_no_scale():
    told = scale_of({f"{NAME}.oft_blocks": torch.zeros(2, 3, 3), f"{NAME}.alpha": torch.tensor(0.5)})
    assert told == "1 module with an alpha that limits a rotation"


def test_a_header_beyond_what_loaders_read_is_called_so(tmp_path):
    path = tmp_path / "ink.safetensors"
    size = 100_000_001
    path.write_bytes(struct.pack("<Q", size) + b"{" + b" " * (size - 2) + b"}")
    with pytest.raises(FileError, match="has a header of 100,000,001 bytes"):
        open_lora(path)


def test_settings_of_the_model_count_in_another_naming_too(tmp_path):
    """A converter that kept diffusers' header and took kohya's names."""
    told = {"lora_adapter_metadata": '{"unet.r": 4, "unet.lora_alpha": 16, "unet.use_rslora": true}'}
    path = write_small(tmp_path / "ink.safetensors", SDXL, rank=4, alpha=None, metadata=told)
    assert any("scale of 8" in problem for problem in inspect_file(path).problems)
    assert {module.gain for module in open_lora(path).honouring().modules.values()} == {8.0}


def test_patterns_of_another_naming_are_named_and_not_guessed(tmp_path):
    told = {
        "lora_adapter_metadata": '{"unet.r": 4, "unet.lora_alpha": 16, "unet.alpha_pattern": {"to_k": 2}}'
    }
    path = write_small(tmp_path / "ink.safetensors", SDXL, rank=4, alpha=None, metadata=told)
    assert any("converted to others" in problem for problem in inspect_file(path).problems)
    assert {module.gain for module in open_lora(path).honouring().modules.values()} == {1.0}


@pytest.mark.parametrize("mark", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_marks_of_compiled_and_wrapped_layers_are_passed_over_at_any_depth(mark):
    known = {"transformer.blocks.0.attn.to_q": "there"}
    for name in (f"transformer.{mark}.blocks.0.attn.to_q", f"transformer.blocks.0.{mark}.attn.{mark}.to_q"):
        assert resolve(name, known) == "there"  # pyright: ignore[reportArgumentType]


def test_an_old_file_with_the_lora_beside_other_things_is_read(tmp_path):
    path = tmp_path / "ink.pt"
    torch.save({"epoch": 3, "lora": factors(), "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}}, path)
    assert list(open_lora(path).modules) == [NAME]


def test_an_old_file_with_two_sets_of_tensors_names_both(tmp_path):
    path = tmp_path / "ink.pt"
    torch.save({"unet": factors(), "ema": factors()}, path)
    with pytest.raises(FileError, match="several sets of tensors, `unet`, `ema`"):
        open_lora(path)


def test_an_old_embedding_is_called_one(tmp_path):
    path = tmp_path / "token.pt"
    torch.save(
        {"string_to_token": {"*": 265}, "string_to_param": {"*": torch.ones(2, 768)}, "name": "ink"}, path
    )
    with pytest.raises(FileError, match="an embedding"):
        open_lora(path)
