"""`merge`: what it writes, what it says, what it refuses to lose."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file

import lora_alloy.cli.merge as command
from lora_alloy.core.params import settable
from lora_alloy.lora.file import open_lora
from lora_alloy.merging.recipe import Recipe


def test_a_merge_writes_one_lora_and_says_how_well(run, loras, tmp_path):
    ran = run("merge", loras[0], f"{loras[1]}:0.5", "-o", tmp_path / "new" / "out")
    assert ran.code == 0 and ran.err == ""
    assert (tmp_path / "new" / "out.safetensors").is_file()
    for words in (
        "2 LoRAs merged for Stable Diffusion XL",
        "Saved:",
        "5 targets equal the merge bit for bit",
    ):
        assert words in ran.out


def test_strengths_on_the_command_line_are_those_of_the_result(run, loras, tmp_path):
    output = tmp_path / "out.safetensors"
    assert run("merge", f"{loras[0]}:-0.5:0.25", "-o", output, "--dtype", "float32").code == 0
    before, after = _deltas(loras[0]), _deltas(output)
    model = "diffusion_model.input_blocks.4.1.transformer_blocks.0.attn2.to_k"
    text = "text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj"
    kohya = "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k"
    kohya_text = "lora_te1_text_model_encoder_layers_0_self_attn_q_proj"
    torch.testing.assert_close(after[model], -0.5 * before[kohya])
    torch.testing.assert_close(after[text], 0.25 * before[kohya_text])


def test_one_lora_is_not_several(run, loras, tmp_path):
    assert run("merge", loras[0], "-o", tmp_path / "one").out.startswith("LoRA Alloy: 1 LoRA merged for ")
    assert run("analyze", loras[0]).out.startswith("LoRA Alloy: 1 LoRA for ")


def test_preserve_counts_entries_from_one(run, loras, tmp_path):
    run(
        "merge",
        *loras,
        "-o",
        tmp_path / "out",
        "--preserve",
        "3",
        "--preserve",
        "1",
        "--json",
        tmp_path / "j",
    )
    report = json.loads((tmp_path / "j").read_text())["report"]
    assert [source["preserve"] for source in report["sources"]] == [True, False, True]


@pytest.mark.parametrize("naming", ["kohya", "diffusers"])
def test_the_naming_is_that_which_was_asked_for(run, loras, tmp_path, naming):
    assert run("merge", *loras, "-o", tmp_path / "out", "--naming", naming).code == 0
    prefix = {"kohya": ("lora_unet_", "lora_te1_"), "diffusers": ("unet.", "text_encoder.")}[naming]
    assert all(name.startswith(prefix) for name in load_file(tmp_path / "out.safetensors"))


def test_every_field_of_a_recipe_is_a_flag(run, loras, tmp_path):
    flags = {
        "method": ["--method", "weighted-average"],
        "auto_strength": ["--no-auto-strength"],
        "auto_strength_floor": ["--auto-strength-floor", "0.25"],
        "global_scale": ["--global-scale", "strongest"],
        "strength_scale": ["--strength-scale", "relative"],
        "rank": ["--rank", "7"],
        "tolerance": ["--tolerance", "0.125"],
        "dtype": ["--dtype", "bfloat16"],
        "partial": ["--partial"],
        "hold_structural": ["--no-hold-structural"],
        "honour_metadata": ["--honour-metadata"],
        "density": ["--density", "0.5"],
        "sparsify": ["--sparsify", "dare-conflict"],
        "dampening": ["--dampening", "0.25"],
        "enhance": ["--enhance", "knots,orthogonalise"],
        "scope": ["--scope", "global"],
        "strategy_set": ["--strategy-set", "basic"],
        "smoothing": ["--smoothing", "0.5"],
        "architecture": ["--architecture", "dit"],
        "vote": ["--vote", "total"],
        "divisor": ["--divisor", "count"],
        "symmetric": ["--symmetric"],
        "dominance": ["--dominance", "2"],
        "rank_limit": ["--rank-limit", "100"],
        "compress": ["--compress", "aggressive"],
        "formula": ["--formula", "1+2"],
        "star_eta": ["--star-eta", "90"],
        "tame": ["--tame", "0"],
        "tame_threshold": ["--tame-threshold", "0.5"],
        "seed": ["--seed", "7"],
    }
    assert flags.keys() == settable(Recipe).keys()
    given = [word for words in flags.values() for word in words]
    ran = run("merge", *loras, "-o", tmp_path / "out", "--json", "-", *given)
    recipe = json.loads(ran.out)["plan"]["recipe"]
    expected = Recipe(
        method="weighted_average",
        auto_strength=False,
        auto_strength_floor=0.25,
        global_scale="strongest",
        strength_scale="relative",
        rank=7,
        tolerance=0.125,
        dtype="bfloat16",
        partial=True,
        hold_structural=False,
        honour_metadata=True,
        density=0.5,
        sparsify="dare_conflict",
        dampening=0.25,
        enhance="orthogonalise,knots",
        scope="global",
        strategy_set="basic",
        smoothing=0.5,
        architecture="dit",
        vote="total",
        divisor="count",
        symmetric=True,
        dominance=2.0,
        rank_limit=100,
        compress="aggressive",
        formula="1+2",
        star_eta=90.0,
        tame_threshold=0.5,
        seed=7,
    )
    assert Recipe.from_json(recipe) == expected


def test_flags_outdo_the_file_and_the_preset(run, loras, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"method": "slerp", "rank": 3}')
    by_file = run("merge", *loras, "--plan-only", "--json", "-", "--recipe", recipe, "--rank", "auto")
    by_preset = run("merge", *loras, "--plan-only", "--json", "-", "--preset", "vivid", "--method", "karcher")
    both = run("merge", *loras, "--plan-only", "--preset", "vivid", "--recipe", recipe)
    assert json.loads(by_file.out)["plan"]["recipe"]["method"] == "slerp"
    assert json.loads(by_file.out)["plan"]["recipe"]["rank"] == 0
    assert json.loads(by_preset.out)["plan"]["recipe"]["global_scale"] == "strongest"
    assert json.loads(by_preset.out)["plan"]["recipe"]["method"] == "karcher"
    assert both.code == 1 and "give one of them" in both.err


def test_a_plan_replays_to_the_same_bytes(run, loras, tmp_path):
    run(
        "merge",
        *loras,
        "-o",
        tmp_path / "first",
        "--method",
        "slerp",
        "--rank",
        "5",
        "--json",
        tmp_path / "j",
    )
    assert run("merge", *loras, "-o", tmp_path / "second", "--plan", tmp_path / "j").code == 0
    first, second = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second
    other = run("merge", loras[0], loras[2], "-o", tmp_path / "third", "--plan", tmp_path / "j")
    assert other.code == 1 and "made for another stack" in other.err
    asked = run("merge", *loras, "-o", tmp_path / "third", "--plan", tmp_path / "j", "--rank", "3")
    assert asked.code == 1 and "takes no recipe" in asked.err


def test_a_plan_alone_writes_no_lora(run, loras, tmp_path):
    ran = run("merge", *loras, "--plan-only")
    assert ran.code == 0 and "Nothing was merged" in ran.out and "input_blocks.4" in ran.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loras"]


def test_json_on_stdout_stands_alone(run, loras, tmp_path):
    ran = run("merge", *loras, "-o", tmp_path / "out", "--json", "-")
    told = json.loads(ran.out)
    assert told.keys() == {"tool", "command", "proof", "report", "plan"}
    assert told["proof"]["target_count"] == 5
    assert told["proof"]["read_error"] == 0.0
    assert 0 < told["proof"]["merge_error"] < 1e-3
    assert [source["label"] for source in told["report"]["sources"]] == [path.name for path in loras]


def test_quiet_says_nothing(run, loras, tmp_path):
    ran = run("merge", *loras, "-o", tmp_path / "out", "-q", "--json", tmp_path / "j")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert json.loads((tmp_path / "j").read_text())["command"] == "merge"


def test_words_may_stand_in_any_order(run, loras, tmp_path):
    assert run("merge", "-o", tmp_path / "out", loras[0], "--rank", "4", loras[1], loras[2]).code == 0


@pytest.mark.parametrize("flag", ["--output", "--html", "--json"])
def test_a_file_that_exists_is_replaced_only_by_force(run, loras, tmp_path, flag):
    there = tmp_path / "there.safetensors"
    there.write_text("precious")
    words = ["merge", *loras, "-o", tmp_path / "out", flag, there]
    refused = run(*words)
    assert refused.code == 1 and "exists already" in refused.err
    assert there.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loras", "there.safetensors"]
    assert run(*words, "--force").code == 0
    assert there.read_bytes() != b"precious"


def test_an_input_is_replaced_only_by_force(run, loras, tmp_path):
    before = loras[0].read_bytes()
    refused = run("merge", *loras, "-o", loras[0])
    assert refused.code == 1 and "one of the files to read" in refused.err
    assert loras[0].read_bytes() == before
    assert run("merge", *loras, "-o", loras[0], "--force").code == 0
    assert len(open_lora(loras[0]).modules) == 5


@pytest.mark.parametrize("flag", ["--html", "--json"])
def test_a_report_never_replaces_an_input(run, loras, tmp_path, flag):
    before = loras[0].read_bytes()
    ran = run("merge", *loras, "-o", tmp_path / "out", flag, loras[0], "--force")
    assert ran.code == 1 and "one of the files to read" in ran.err
    assert loras[0].read_bytes() == before
    assert not (tmp_path / "out.safetensors").exists()


def test_two_results_do_not_share_a_file(run, loras, tmp_path):
    ran = run("merge", *loras, "-o", tmp_path / "out", "--json", tmp_path / "out.safetensors")
    assert ran.code == 1 and "two outputs" in ran.err


def test_two_ways_to_one_place_are_one_place(run, loras, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    for other in ("sub/../out.safetensors", "link/out.safetensors"):
        ran = run("merge", *loras, "-o", tmp_path / "out", "--json", f"{tmp_path}/{other}")
        assert ran.code == 1 and "two outputs" in ran.err
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs pipes in folders")
@pytest.mark.parametrize("flag", ["-o", "--html", "--json"])
def test_a_pipe_or_a_device_is_never_replaced(run, loras, tmp_path, flag):
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    link = tmp_path / "link.safetensors"
    link.symlink_to(pipe)
    for place in (pipe, link):
        ran = run(
            "merge", *loras, *([] if flag == "-o" else ["-o", tmp_path / "out"]), flag, place, "--force"
        )
        assert ran.code == 1 and "is a device or a pipe" in ran.err
    assert pipe.is_fifo() and link.is_symlink() and not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("x" * 300, "File name too long"),
        ("x" * 300 + "/out", "File name too long"),
        ("new/" * 1900 + "out", "File name too long"),
        ("new/" * 500 + "out", "below 500 folders that do not exist"),
        ("a\0b", "is no name that a file can have"),
        ("\ud83c", "is no name that a file can have"),
    ],
    ids=["long", "a long folder", "a long path", "deep", "a null", "half a character"],
)
@pytest.mark.parametrize("flag", ["-o", "--html", "--json"])
def test_a_place_that_cannot_be_is_a_sentence(run, loras, tmp_path, monkeypatch, place, says, flag):
    monkeypatch.chdir(tmp_path)
    ran = run("merge", *loras, *([] if flag == "-o" else ["-o", "out"]), flag, place)
    assert ran.code == 1 and says in ran.err and ran.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["loras"]


def test_what_came_to_be_during_the_merge_is_not_replaced(run, loras, tmp_path, monkeypatch):
    output = tmp_path / "out.safetensors"
    merging = command.merge

    def overtaken(*given, **named):
        output.write_text("precious")
        return merging(*given, **named)

    monkeypatch.setattr(command, "merge", overtaken)
    ran = run("merge", *loras, "-o", output)
    assert ran.code == 1 and "exists already" in ran.err
    assert output.read_text() == "precious"


@pytest.mark.parametrize("words", [["--json", ""], ["--html", ""]])
def test_an_output_without_a_name_is_not_passed_over(run, loras, tmp_path, words):
    ran = run("merge", *loras, "-o", tmp_path / "out", *words)
    assert ran.code == 1 and "is a folder" in ran.err


def test_a_place_that_is_no_file_is_refused_before_any_work(run, loras, tmp_path):
    (tmp_path / "file").write_text("")
    for place, says in (
        (tmp_path / "loras", "is a folder"),
        (f"{tmp_path / 'new'}{os.sep}", "is a folder"),
        (tmp_path / "file" / "out", "is a file, so nothing can be written below it"),
    ):
        ran = run("merge", *loras, "-o", place)
        assert ran.code == 1 and says in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loras"]


def test_a_read_only_file_stays(run, loras, tmp_path):
    there = tmp_path / "there.safetensors"
    there.write_text("precious")
    there.chmod(0o444)
    ran = run("merge", *loras, "-o", there, "--force")
    assert ran.code == 1 and "is read-only" in ran.err
    assert there.read_text() == "precious"


def test_a_read_only_folder_takes_nothing(run, loras, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):
        pytest.skip("the superuser writes everywhere")
    ran = run("merge", *loras, "-o", folder / "out")
    folder.chmod(0o755)
    assert ran.code == 1 and "is read-only" in ran.err
    assert list(folder.iterdir()) == []


def _deltas(path):
    file = open_lora(path)
    return {name: file.load(module).dense() for name, module in file.modules.items()}
