"""Every bad input is one sentence that names the file, code 1, and nothing is written."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_alloy_testing import bad_files
from lora_alloy_testing.bad_files import BAD_TO_OPEN, BAD_TO_READ
from lora_alloy_testing.small_loras import SD15, write_small

SAYS = {
    "missing": "does not exist",
    "a_folder": "is a folder",
    "empty": "is empty",
    "seven_bytes": "has 7 bytes",
    "answer_of_a_site": 'is text, not a LoRA; it begins with `{"error":"Unauthorized"',
    "zeros": "begins with zeros",
    "gguf": "is a GGUF model",
    "link_to_itself": "is a link that leads back to itself",
    "link_to_nothing": "elsewhere.safetensors`, which does not exist",
    "name_twice": "a name stands twice in the header",
    "list_of_tensors": "holds a list, not named tensors",
    "web_page": "is a web page",
    "lfs_pointer": "is a Git-LFS pointer",
    "zip_archive": "is a zip archive",
    "cut_body": "behind the end of the file",
    "cut_header": "is cut off",
    "long_header": "announces a header of",
    "header_of_no_json": "is not a sound safetensors file",
    "deep_header": "nested beyond reason",
    "overlapping_offsets": "overlap",
    "negative_shape": "has the shape [-4, -4]",
    "hostile_pickle": "could run code",
    "hostile_torch_zip": "could run code",
    "renamed_pickle": "is a Python pickle",
    "mismatched_ranks": "of ranks 4 and 8",
    "rank_zero": "rank and sizes must not be 0",
    "up_alone": "has the up factor but not the down factor",
    "checkpoint": "is a whole model",
    "no_tensors": "holds no tensors",
    "other_tensors": "is an embedding",
    "nan": "NaN or infinite",
    "infinite": "NaN or infinite",
    "nan_alpha": "is nan",
    "whole_numbers": "torch.int32",
}


def test_every_bad_file_has_its_sentence():
    assert SAYS.keys() == BAD_TO_OPEN.keys() | BAD_TO_READ.keys()


@pytest.mark.parametrize("made", (BAD_TO_OPEN | BAD_TO_READ).values(), ids=(BAD_TO_OPEN | BAD_TO_READ))
def test_a_bad_file_stops_a_merge_with_a_sentence(run, loras, tmp_path, made):
    bad, output = made(tmp_path), tmp_path / "out.safetensors"
    before = _listing(tmp_path)
    ran = run("merge", loras[0], bad, "-o", output)
    assert ran.code == 1
    assert ran.out == ""
    _assert_sentence(ran.err, bad, SAYS[made.__name__])
    assert _listing(tmp_path) == before


@pytest.mark.parametrize("made", BAD_TO_OPEN.values(), ids=BAD_TO_OPEN)
def test_inspect_reports_a_bad_file_and_goes_on(run, loras, tmp_path, made):
    bad = made(tmp_path)
    ran = run("inspect", bad, loras[0])
    assert ran.code == 1
    _assert_sentence(ran.err, bad, SAYS[made.__name__])
    assert "ink.safetensors" in ran.out and "Stable Diffusion XL" in ran.out


@pytest.mark.parametrize("command", ["inspect", "analyze", "verify"])
@pytest.mark.parametrize(
    "made", [bad_files.hostile_pickle, bad_files.hostile_torch_zip, bad_files.renamed_pickle]
)
def test_a_pickle_runs_nothing(run, tmp_path, command, made):
    assert run(command, made(tmp_path)).code == 1
    assert not (tmp_path / "ran").exists()


def test_the_payload_would_run_if_it_were_opened_carelessly(tmp_path):
    torch.load(bad_files.hostile_torch_zip(tmp_path), weights_only=False)
    assert (tmp_path / "ran").is_dir()


def test_two_families_are_refused_by_name(run, loras, tmp_path):
    other = write_small(tmp_path / "old.safetensors", SD15)
    ran = run("merge", loras[0], other, "-o", tmp_path / "out")
    assert ran.code == 1
    for word in ("old.safetensors", "ink.safetensors", "Stable Diffusion 1.5", "Stable Diffusion XL"):
        assert word in ran.err
    assert not (tmp_path / "out.safetensors").exists()


def test_modules_of_an_unread_format_stop_a_merge_unless_partial(run, loras, tmp_path):
    tensors = load_file(loras[2])
    tensors["lora_unet_input_blocks_5_1_proj_in.ia3_l"] = torch.zeros(4, 4)
    save_file(tensors, loras[2])
    refused = run("merge", *loras, "-o", tmp_path / "out")
    assert refused.code == 1 and "(IA)³ of PEFT's kind" in refused.err and "--partial" in refused.err
    allowed = run("merge", *loras, "-o", tmp_path / "out", "--partial")
    assert allowed.code == 0 and "a partial merge was asked for" in allowed.out


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("ink.safetensors:loud", "`loud` in"),
        ("ink.safetensors:", "is not a strength"),
        ("ink.safetensors:nan", "must be a number"),
        ("ink.safetensors:0", "The stack is empty"),
        ("ink.safetensors:1:2:3", "does not exist"),
        ("x" * 3000, "File name too long"),
    ],
)
def test_a_bad_entry_is_a_sentence(run, loras, tmp_path, entry, says):
    ran = run("merge", loras[0].parent / entry, "-o", tmp_path / "out")
    assert ran.code == 1
    assert says in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bogus"], "No command is called 'bogus'"),
        (["merg"], "Did you mean 'merge'?"),
        (["inspect"], "required: FILE"),
        (["merge", "A"], "-o OUT"),
        (["merge", "A", "-o", "q", "--densty", "0.5"], "--densty"),
        (["merge", "A", "-o", "q", "--method", "slurp"], "Did you mean 'slerp'?"),
        (["merge", "A", "-o", "q", "--rank", "many"], "`many` is not a whole number or `auto`"),
        (["merge", "A", "-o", "q", "--rank", "-1"], "between 0 and 4096"),
        (["merge", "A", "-o", "q", "--tolerance", "3"], "between 0 and 1"),
        (["merge", "A", "-o", "q", "--dtype", "int8"], "float32"),
        (["merge", "A", "-o", "q", "--preset", "loud"], "balanced"),
        (["merge", "A", "-o", "q", "--naming", "mine"], "kohya"),
        (["merge", "A", "-o", "q", "--preserve", "2"], "there are 1"),
        (["merge", "A", "-o", "q", "--preserve", "0"], "counted from 1"),
        (["merge", "A", "-o", "q", "--recipe", "absent.json"], "absent.json"),
        (["merge", "A", "-o", "q", "--plan-only"], "writes no LoRA"),
        (["verify", "A"], "does not say how it was made"),
        (["verify", "A", "A"], "give its recipe"),
    ],
)
def test_a_bad_command_line_is_a_sentence(run, loras, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    ran = run(*(loras[0] if word == "A" else word for word in words))
    assert ran.code == 1
    assert ran.out == ""
    assert says in ran.err
    assert _listing(tmp_path) == ["loras"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[1]", "a JSON object is needed"),
        ('{"densty": 1}', "No field of a recipe is called 'densty'"),
        ('{"method": 3}', "must be str"),
        ('{"version": 99}', "version 99"),
        ("[" * 100_000, "not JSON"),
        ("\udcff", "not a text file in UTF-8"),
    ],
)
def test_a_bad_recipe_is_a_sentence(run, loras, tmp_path, text, says):
    recipe = tmp_path / "recipe.json"
    recipe.write_bytes(text.encode("utf-8", "surrogateescape"))
    ran = run("merge", loras[0], "-o", tmp_path / "out", "--recipe", recipe)
    assert ran.code == 1
    assert says in ran.err and "recipe.json" in ran.err


def test_a_bad_plan_is_a_sentence_with_the_name_of_its_file(run, loras, tmp_path):
    (tmp_path / "plan.json").write_text('{"version": 2, "recipe": {}, "sources": 5}')
    ran = run("merge", loras[0], "-o", tmp_path / "out", "--plan", tmp_path / "plan.json")
    assert ran.code == 1 and "plan.json` cannot be used: The plan is damaged: 5 stands for a list" in ran.err


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs an endless file")
def test_an_endless_recipe_is_a_sentence(run, loras, tmp_path, monkeypatch):
    monkeypatch.setattr("lora_alloy.cli.options.JSON_LIMIT", 1000)
    ran = run("merge", loras[0], "-o", tmp_path / "out", "--recipe", "/dev/zero")
    assert ran.code == 1 and "too large" in ran.err


def test_names_from_files_cannot_steer_the_terminal(run, tmp_path):
    path = tmp_path / "hostile.safetensors"
    odd = "\x1b]0;owned\x07\x1b[31m"
    save_file(bad_files.lora() | {f"{odd}.thing": torch.zeros(1)}, path, {"modelspec.trigger_phrase": odd})
    ran = run("inspect", path)
    assert ran.code == 0 and "\\u001b" in ran.out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", ran.out + ran.err)


def _assert_sentence(text: str, path: Path, says: str) -> None:
    assert path.name in text and says in text
    assert "Traceback" not in text
    assert text.endswith(".\n") and text.count("\n") == 1


def _listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
