"""`memory` and `--memory`: nothing is remembered unasked, what is can be seen, and goes when told to."""

import json

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LORA_ALLOY_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("LORA_ALLOY_CACHE_GB", raising=False)
    return tmp_path / "kept"


def test_nothing_is_remembered_unless_it_is_asked_for(run, loras, tmp_path, folder):
    assert run("merge", *loras, "-o", tmp_path / "out").code == 0
    assert run("memory").code == 0
    assert not folder.exists()


def test_the_second_merge_comes_from_memory_and_is_the_same_file(run, loras, tmp_path, folder):
    first = run("merge", *loras, "-o", tmp_path / "one", "--memory", "auto")
    second = run("merge", *loras, "-o", tmp_path / "two", "--memory", "auto")
    assert first.code == second.code == 0 and first.err == second.err == ""
    assert "From memory" not in first.out and "From memory" in second.out
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    third = run("merge", *loras, "-o", tmp_path / "three", "--memory", "clear_and_run")
    assert third.code == 0 and "From memory" not in third.out
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "three.safetensors").read_bytes()


def test_memory_shows_what_there_is_and_clears_it(run, loras, tmp_path, folder):
    run("merge", *loras, "-o", tmp_path / "out", "--memory", "auto")
    shown = run("memory", "--json", "-")
    told = json.loads(shown.out)
    assert told["kinds"]["result"]["count"] == 1 and told["kinds"]["lora_analysis"]["count"] == 3
    assert told["size_bytes"] == sum(kind["size_bytes"] for kind in told["kinds"].values()) > 0
    assert told["folder"] == str(folder) and told["limit_bytes"] == 4 << 30
    assert "analysis of two LoRAs" in run("memory").out
    cleared = run("memory", "--clear")
    assert cleared.code == 0 and "Deleted" in cleared.out
    assert json.loads(run("memory", "--json", "-").out)["kinds"] == {}
    assert all(path.is_file() for path in loras)


def test_a_limit_of_the_environment_holds(run, loras, tmp_path, monkeypatch):
    monkeypatch.setenv("LORA_ALLOY_CACHE_GB", "0")
    ran = run("merge", *loras, "-o", tmp_path / "out", "--memory", "auto")
    assert ran.code == 0 and "limited to 0 MiB" in ran.err
    monkeypatch.setenv("LORA_ALLOY_CACHE_GB", "plenty")
    assert run("memory").code == 1


def test_a_folder_that_cannot_be_written_costs_a_note_and_no_merge(run, loras, tmp_path, folder):
    folder.write_text("mine")
    ran = run("merge", *loras, "-o", tmp_path / "out", "--memory", "auto")
    assert ran.code == 0 and "cannot be written" in ran.err
    assert (tmp_path / "out.safetensors").is_file() and folder.read_text() == "mine"


def test_a_plan_alone_remembers_its_analysis(run, loras, folder):
    assert run("merge", *loras, "--plan-only", "--memory", "auto").code == 0
    kinds = json.loads(run("memory", "--json", "-").out)["kinds"]
    assert kinds["pair_analysis"]["count"] == 3 and "result" not in kinds
