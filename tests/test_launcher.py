"""alloy.py: what it decides, and an environment that it really makes."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from lora_alloy.cli import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
GIGABYTE = 1_000_000_000
Launch = Callable[..., ModuleType]


@pytest.fixture
def launcher(monkeypatch, tmp_path) -> Launch:
    """The launcher, as it comes up with some environment variables and a home of its own."""

    def start(**variables: str) -> ModuleType:
        for name in ("LORA_ALLOY_TORCH", "LORA_ALLOY_YES"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"LORA_ALLOY_VENV": str(tmp_path / "home"), **variables}.items():
            monkeypatch.setenv(name, value)
        spec = importlib.util.spec_from_file_location("alloy_launcher", ROOT / "alloy.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return start


@pytest.mark.parametrize("words", [[], ["--help"], ["help"]], ids=str)
def test_without_a_command_it_explains_itself_and_installs_nothing(launcher, words, capsys, tmp_path):
    assert launcher().main(words) == 0
    assert "python alloy.py demo" in capsys.readouterr().out
    assert not (tmp_path / "home").exists()


def test_its_usage_names_every_command(launcher):
    assert set(COMMANDS) <= set(re.findall(r"\w+", launcher().USAGE))


@pytest.mark.parametrize(
    ("version", "minimum", "is_enough"),
    [
        ("2.13.0+cpu", "2.4", True),
        ("2.4", "2.4", True),
        ("2.10.1", "2.9", True),
        ("2.3.1", "2.4", False),
        ("", "2.4", False),
    ],
)
def test_versions_compare_as_numbers(launcher, version, minimum, is_enough):
    assert launcher().is_at_least(version, minimum) is is_enough


def test_a_torch_is_chosen_by_version_by_path_or_by_arguments_for_pip(launcher, tmp_path):
    choose = launcher().torch_arguments
    wheel = tmp_path / "torch-2.9.1+cpu.whl"
    wheel.touch()
    pin = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:7] == "torch==")
    assert choose("2.9.1+cpu") == ["torch==2.9.1+cpu"]
    assert choose(str(wheel)) == [str(wheel)]
    assert choose("torch==2.9.1 --no-index") == ["torch==2.9.1", "--no-index"]
    assert choose("--find-links wheels/torch-cpu") == [pin, "--find-links", "wheels/torch-cpu"]


def test_pins_leave_out_what_is_there_already_however_it_is_spelt(launcher):
    lines = launcher().constraints(leave_out={"Typing.Extensions", "numpy"}).splitlines()
    names = {line.split("=")[0] for line in lines}
    assert "torch" in names
    assert not names & {"typing_extensions", "numpy"}


@pytest.mark.parametrize(
    ("variable", "words", "expected"),
    [("", [], None), ("1", [], True), ("0", [], False), ("0", ["demo", "--yes"], True)],
)
def test_consent_comes_from_the_option_or_the_variable(launcher, variable, words, expected):
    assert launcher(LORA_ALLOY_YES=variable).consent(words) is expected


def test_a_large_download_is_explained_before_it_starts(launcher, capsys, tmp_path):
    alloy = launcher()
    alloy.HOME.mkdir()
    alloy.agree(3 * GIGABYTE, True, yes=True)
    said = capsys.readouterr().err
    assert "3.0 GB" in said and "GPU build" in said and "LORA_ALLOY_TORCH" in said


def test_a_large_download_stops_at_a_no_and_at_a_full_disk(launcher):
    alloy = launcher()
    alloy.HOME.mkdir()
    with pytest.raises(alloy.SetupError, match="nothing of it was installed"):
        alloy.agree(3 * GIGABYTE, True, yes=False)
    with pytest.raises(alloy.SetupError, match="are free on the disk"):
        alloy.agree(10**9 * GIGABYTE, True, yes=True)


@pytest.mark.parametrize(("answer", "goes_on"), [("y\n", True), ("\n", False), ("no\n", False), ("", False)])
def test_on_a_terminal_only_a_yes_starts_a_large_download(launcher, monkeypatch, answer, goes_on):
    alloy = launcher()
    alloy.HOME.mkdir()

    class Terminal:
        def __getattr__(self, name):
            return {"isatty": lambda: True, "readline": lambda: answer}.get(name, lambda *_: None)

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    if goes_on:
        alloy.agree(3 * GIGABYTE, True, yes=None)
    else:
        with pytest.raises(alloy.SetupError):
            alloy.agree(3 * GIGABYTE, True, yes=None)


def test_without_a_terminal_nothing_waits_for_an_answer(launcher, monkeypatch):
    alloy = launcher()
    alloy.HOME.mkdir()
    monkeypatch.setattr(sys, "stdin", None)
    alloy.agree(3 * GIGABYTE, True, yes=None)


def test_a_folder_that_it_did_not_make_is_left_alone(launcher, tmp_path, capsys):
    kept = tmp_path / "home" / "mine.txt"
    kept.parent.mkdir()
    kept.touch()
    assert launcher(LORA_ALLOY_TORCH="0.0.1").main(["demo"]) == 1
    assert "was not made by alloy.py" in capsys.readouterr().err
    assert kept.exists()


def test_a_group_that_does_not_exist_is_named(launcher, capsys):
    assert launcher().main(["setup", "dve"]) == 1
    assert "'dve'. Known: dev, lint, peers" in capsys.readouterr().err


def test_an_environment_is_kept_until_what_it_was_made_of_changes(launcher, tmp_path):
    alloy = launcher()
    python = Path(alloy.venv_python())
    python.parent.mkdir(parents=True)
    python.touch()
    state = {"key": alloy.key(), "python": alloy.MINOR, "groups": ["dev"], "spec": "2.9.1", "borrowed": []}

    def is_ready(groups: list[str] = [], start: dict[str, str] = {}, **changes: object) -> bool:  # noqa: B006
        alloy.STATE.write_text(json.dumps({**state, **changes}), encoding="utf-8")
        return launcher(**start).is_ready(groups)

    assert is_ready() and is_ready(["dev"])
    assert is_ready(start={"LORA_ALLOY_TORCH": "2.9.1"})
    assert not is_ready(["peers"])
    assert not is_ready(key="another")
    assert not is_ready(python="3.9")
    assert not is_ready(start={"LORA_ALLOY_TORCH": "2.8.0"})
    assert not is_ready(borrowed=[str(tmp_path / "gone")])
    alloy.STATE.write_text("{}", encoding="utf-8")
    assert not launcher().is_ready([])


def test_an_environment_finds_the_torch_that_this_python_lends_it(launcher):
    alloy = launcher()
    venv.create(alloy.HOME, with_pip=False, symlinks=os.name != "nt")
    code = "import importlib.util; print(getattr(importlib.util.find_spec('torch'), 'origin', None))"
    assert alloy.ask_venv(code) == "None"
    alloy.lend(alloy.package_folders())
    torch = importlib.util.find_spec("torch")
    assert torch and alloy.ask_venv(code) == torch.origin


def test_a_python_that_has_everything_runs_a_command_without_an_environment(tmp_path):
    home = tmp_path / "home"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LORA_ALLOY_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "alloy.py"), "methods"],
        env={**kept, "LORA_ALLOY_VENV": str(home)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "karcher" in done.stdout
    assert not home.exists()
