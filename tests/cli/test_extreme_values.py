"""Values at the ends of what numbers hold: a right result, or a sentence that names the file and the remedy."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_alloy_testing.small_loras import SDXL, write_small


@pytest.mark.parametrize("command", ["merge", "analyze"])
@pytest.mark.parametrize("strength", ["1e308", "-1e200", "1.1e6"])
def test_a_strength_beyond_all_use_is_refused_by_name(run, loras, tmp_path, command, strength):
    output = ("-o", tmp_path / "out") if command == "merge" else ()
    ran = run(command, f"{loras[0]}:{strength}", f"{loras[1]}:{strength}", *output)
    assert ran.code == 1
    assert ran.err.startswith("The strength of `ink.safetensors` is ")
    assert ran.err.endswith("it must lie between -1e+06 and 1e+06.\n")


@pytest.mark.parametrize("command", ["merge", "analyze"])
@pytest.mark.parametrize("alpha", [None, 1e150], ids=["factors", "alpha"])
def test_values_beyond_float32_are_refused_by_the_name_of_their_file(run, loras, tmp_path, command, alpha):
    path = write_small(tmp_path / "loud.safetensors", SDXL, dtype=torch.float32)
    tensors = load_file(path)
    for name, value in tensors.items():
        if alpha is None and not name.endswith("alpha"):
            tensors[name] = value * 1e22
        elif alpha is not None and name.endswith("alpha"):
            tensors[name] = torch.tensor(alpha, dtype=torch.float64)
    save_file(tensors, path)
    output = ("-o", tmp_path / "out") if command == "merge" else ()
    ran = run(command, loras[0], path, *output)
    assert ran.code == 1
    assert "of `loud.safetensors`: the values are too large for float32" in ran.err
    assert "ink.safetensors" not in ran.err
    assert ran.err.endswith("Take it out of the stack, or get it again.\n")


def test_what_float32_cannot_hold_is_no_reason_to_ask_for_float32(run, tmp_path):
    save_file({f"{next(iter(SDXL))}.diff": torch.full((640, 2048), 1e34)}, tmp_path / "loud.safetensors")
    for dtype, says in (
        ("float32", "float32; lower the strengths."),
        ("float16", "float16; merge in float32"),
    ):
        ran = run("merge", tmp_path / "loud.safetensors:1e6", "-o", tmp_path / "out", "--dtype", dtype)
        assert ran.code == 1 and f"is too large for {says}" in ran.err


@pytest.mark.parametrize("how", ["up is zero", "alpha is zero"])
@pytest.mark.parametrize("command", ["merge", "analyze"])
def test_a_lora_that_changes_nothing_is_said_to(run, loras, tmp_path, command, how):
    tensors = load_file(loras[2])
    zeroed = "lora_up.weight" if how == "up is zero" else "alpha"
    silent = {name: value * 0 if name.endswith(zeroed) else value for name, value in tensors.items()}
    save_file(silent, tmp_path / "silent.safetensors")
    output = ("-o", tmp_path / "out") if command == "merge" else ()
    ran = run(command, loras[0], tmp_path / "silent.safetensors", *output)
    assert ran.code == 0
    assert "Note: `silent.safetensors` changes nothing" in ran.out
    assert "`ink.safetensors` changes nothing" not in ran.out


def test_what_rounding_takes_of_the_whole_is_said_with_the_remedy(run, loras, tmp_path):
    faint = ("merge", f"{loras[0]}:1e-10", "-o")
    quiet = run(*faint, tmp_path / "half", "--dtype", "float16")
    assert quiet.code == 0 and "Note: Rounding to float16 takes" in quiet.out and "float32" in quiet.out
    for more in ((), ("--dtype", "float32")):
        whole = run(*faint, tmp_path / "whole", *more, "--force")
        assert whole.code == 0 and "Rounding" not in whole.out
    assert "Rounding" not in run("merge", loras[0], "-o", tmp_path / "plain").out


def test_a_merge_that_rounding_all_but_loses_is_saved_only_if_that_is_allowed(run, loras, tmp_path):
    words = ("merge", f"{loras[0]}:1e-13", "-o", tmp_path / "out", "--dtype", "float16")
    ran = run(*words)
    assert ran.code == 1 and "Nothing was saved" in ran.err and "--dtype float32" in ran.err
    assert not (tmp_path / "out.safetensors").exists()
    assert run(*words, "--max-loss", "1").code == 0
    assert run(*words, "--max-loss", "nan", "--force").code == 1


def test_strengths_that_cancel_are_called_so(run, loras, tmp_path):
    ran = run("merge", loras[0], f"{loras[0]}:-1", "-o", tmp_path / "out")
    assert ran.code == 1 and "add up to 0" in ran.err
