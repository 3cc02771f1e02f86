"""`inspect`, `analyze`, `methods`, `demo`, and the words before a command."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_alloy.cli import COMMANDS, main
from lora_alloy.enhance import ENHANCERS
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.presets import PRESETS
from lora_alloy.sparsify import SPARSIFIERS

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "docs" / "command-line.md"


def test_help_lists_every_command_and_succeeds(run):
    for words in (["--help"], ["-h"], ["help"]):
        ran = run(*words)
        assert ran.code == 0 and all(f"  {name} " in ran.out for name in COMMANDS)


def test_no_command_is_a_mistake(run):
    ran = run()
    assert ran.code == 1 and ran.out == "" and "usage: lora-alloy COMMAND" in ran.err


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        (ROOT / "alloy.py", "python alloy.py"),
        (ROOT / "__main__.py", "python -m lora_alloy"),
        (ROOT.parent / "__main__.py", "lora-alloy"),
        (ROOT.parent / "bin" / "lora-alloy", "lora-alloy"),
    ],
)
def test_what_to_type_next_is_spelt_as_what_was_typed(run, monkeypatch, tmp_path, started, typed):
    monkeypatch.setattr("sys.argv", [str(started)])
    assert f"usage: {typed} COMMAND" in run("help").out
    assert f"usage: {typed} merge " in run("merge", "--help").out
    assert f"Now with your own: {typed} merge " in run("demo", "--dir", tmp_path).out
    assert f"`{typed} merge --help`" in run("merge", "--rank").err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(run, command):
    ran = run(command, "--help")
    assert ran.code == 0
    for flag in ("--json", "--quiet", "--force"):
        assert flag in ran.out


def test_a_version_is_told(run):
    assert re.fullmatch(r"LoRA Alloy \d+\.\d+\.\d+\n", run("--version").out)


def test_main_takes_its_words_from_the_process_if_none_are_given(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lora-alloy", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("LoRA Alloy")


def test_inspect_tells_machines_too(run, loras):
    told = json.loads(run("inspect", *loras, "--json", "-").out)
    assert told.keys() == {"tool", "command", "files", "failed", "merge"}
    assert [file["ranks"] for file in told["files"]] == [{"8": 5}, {"4": 4}, {"6": 4}]
    alphas = {"stored_count": 5, "missing_count": 0, "scales": {"0.25": 5}, "limit_count": 0}
    assert told["files"][0]["alphas"] == alphas
    assert told["failed"] == []


def test_inspect_claims_nothing_of_a_file_of_which_nothing_is_read(run, tmp_path):
    name = "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_k"
    tensors = {f"{name}.oft_r": torch.zeros(8, 4, 4), f"{name}.alpha": torch.tensor(4.0)}
    save_file(tensors, tmp_path / "old.safetensors")
    ran = run("inspect", tmp_path / "old.safetensors")
    assert "1 of 1 modules are not read" in ran.out
    assert "no alpha is stored" not in ran.out and "It still merges" not in ran.out


def test_inspect_names_the_files_that_failed(run, loras, tmp_path):
    ran = run("inspect", tmp_path / "absent", loras[0], "--json", "-")
    told = json.loads(ran.out)
    assert ran.code == 1 and len(told["files"]) == 1
    assert told["failed"][0]["path"] == str(tmp_path / "absent")
    assert told["failed"][0]["problem"] in ran.err


def test_analyze_shows_pairs_and_blocks(run, loras):
    short, long = run("analyze", *loras), run("analyze", *loras, "--blocks")
    assert short.code == long.code == 0
    assert "ink.safetensors and robot.safetensors: cosine" in short.out
    assert "times as loud as the strongest" in short.out
    assert "input_blocks.4" in long.out and "input_blocks.4" not in short.out


def test_analyze_warns_of_loras_that_undo_each_other(run, loras, tmp_path):
    tensors = load_file(loras[0])
    turned = {name: -value if "lora_up" in name else value for name, value in tensors.items()}
    save_file(turned, tmp_path / "against.safetensors")
    ran = run("analyze", loras[0], tmp_path / "against.safetensors")
    assert ran.code == 0
    assert "cosine -1.00 (opposed, they undo each other)" in ran.out
    assert "Warning: `ink.safetensors` and `against.safetensors` pull in opposite directions" in ran.out
    agreed = run("analyze", loras[0], f"{tmp_path / 'against.safetensors'}:-1")
    assert "cosine +1.00 (alike)" in agreed.out and "doubles what they share" in agreed.out


def test_analyze_tells_machines_too(run, loras, tmp_path):
    ran = run("analyze", *loras, "--json", "-", "--html", tmp_path / "report.html")
    told = json.loads(ran.out)["analysis"]
    assert len(told["pairs"]) == 3 and len(told["parts"]) == 3
    assert sum(block["target_count"] for block in told["blocks"]) == 5
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_methods_lists_all_there_is(run):
    ran = run("methods")
    told = json.loads(run("methods", "--json", "-").out)
    lines = ran.out.splitlines()
    steps = {"sparsifiers": SPARSIFIERS, "enhancers": {**ENHANCERS, "column_wise": None}}
    for group, modules in {"methods": METHODS, **steps}.items():
        assert told[group].keys() == set(modules)
        for name, module in dict(modules).items():
            place = next(at for at, line in enumerate(lines) if line.startswith(f"  {name:<17} "))
            assert (
                told[group][name]["summary"] in lines[place] and told[group][name]["kind"] in lines[place + 1]
            )
            paper = module.PAPER if module else ""
            assert (told[group][name]["paper"] or "") == paper and lines[place + 1].endswith(paper)
            for param in told[group][name]["parameters"]:
                assert f"{param['name']} = {param['default']}" in lines[place + 2]
    assert {name for name, one in told["methods"].items() if one["kind"].startswith("linear")} == {
        *("weighted_sum", "weighted_average", "slerp", "karcher", "normalize")
    }
    assert all(name in ran.out for name in PRESETS)
    assert told["presets"].keys() == set(PRESETS)


def test_the_example_recipe_is_one(run, loras, tmp_path):
    shown = next(line for line in run("methods").out.splitlines() if line.strip().startswith("{"))
    (tmp_path / "recipe.json").write_text(shown)
    assert run("merge", *loras, "-o", tmp_path / "out", "--recipe", tmp_path / "recipe.json").code == 0


def test_the_demo_runs_from_end_to_end(run, tmp_path):
    folder = tmp_path / "demo"
    ran = run("demo", "--dir", folder)
    assert ran.code == 0 and ran.err == ""
    assert sorted(path.name for path in folder.iterdir()) == [
        "copper-robot.safetensors",
        "demo-merged.safetensors",
        "demo-report.html",
        "ink-wash.safetensors",
        "watercolor.safetensors",
    ]
    assert "Verified again from the three files" in ran.out and str(folder / "demo-report.html") in ran.out
    assert run("verify", folder / "demo-merged.safetensors").code == 0
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run("demo", "--dir", folder, "-q").code == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


@pytest.mark.parametrize("name", ["ink-wash.safetensors", "demo-report.html"])
def test_the_demo_replaces_nobody_elses_files(run, tmp_path, name):
    (tmp_path / name).write_text("precious")
    ran = run("demo", "--dir", tmp_path)
    assert ran.code == 1 and "is not of the demo" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


def test_the_reference_names_every_command_and_flag(run):
    text = README.read_text(encoding="utf-8")
    for command in COMMANDS:
        shown = run(command, "--help").out
        for flag in {*re.findall(r"(?<![\w-])--[a-z-]+", shown)} - {"--help"}:
            assert f"`{flag}" in text, f"{command} {flag}"


def test_inspect_writes_a_page_and_an_estimate(run, loras, tmp_path):
    page, told = tmp_path / "page.html", tmp_path / "told.json"
    seen = run("inspect", *loras, "--html", page, "--json", told)
    assert seen.code == 0 and "A merge takes about" in seen.out
    assert "3 LoRA files" in page.read_text(encoding="utf-8")
    merge = json.loads(told.read_text())["merge"]
    assert merge["target_count"] == 5 and merge["peak_bytes"] > merge["result_bytes"] > 0
    assert "exists already" in run("inspect", *loras, "--html", page).err


def test_inspect_says_what_a_model_has(run, loras, tmp_path):
    weight = "input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight"
    base = tmp_path / "base.safetensors"
    save_file({f"model.diffusion_model.{weight}": torch.zeros(640, 2048)}, base)
    seen = run("inspect", loras[2], "--model", base)
    assert "1 of 4 modules are in base.safetensors" in seen.out
    assert "is a LoRA" in run("inspect", loras[2], "--model", loras[0]).err
