"""docs/evaluators.md: its function, its Python and its commands run as they stand."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from lora_alloy.autotuner.evaluator import KEYWORDS, MODES
from lora_alloy.autotuner.permission import VARIABLE
from lora_alloy.cli import main
from lora_alloy_testing.small_loras import SDXL, SDXL_PEFT, write_small
from lora_alloy_testing.sweeps import shorten

PAGE = Path(__file__).resolve().parent.parent / "docs" / "evaluators.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shorten(monkeypatch)
    write_small(tmp_path / "ink.safetensors", SDXL, seed=1)
    write_small(tmp_path / "portrait.safetensors", SDXL_PEFT, seed=2, alpha=None)
    (tmp_path / "judge.py").write_text(blocks("python")[0])
    (tmp_path / "judge_cli.py").write_text(
        f"{blocks('python')[0]}\nimport json, sys\nwhat = dict.fromkeys({KEYWORDS!r})\n"
        "what |= {'lora_data': {'path': sys.argv[1]}, 'context': {'wanted': 0.2}}\n"
        "print(json.dumps(evaluate_candidate(**what)))\n"
    )
    return tmp_path


def test_the_function_is_asked_from_python(place, capsys):
    exec(compile(blocks("python")[1], str(PAGE), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all("{'largest': " in line for line in lines)
    scores = [float(re.search(r" ([\d.e-]+) \{", line)[1]) for line in lines]
    assert all(0 < score <= 1 for score in scores)


@pytest.mark.parametrize("number", [0, 1])
def test_the_commands_run(place, number):
    # The Python of the tests, which has what the example imports.
    line = blocks("sh")[number].replace("python judge_cli", f'"{Path(sys.executable).as_posix()}" judge_cli')
    words = shlex.split(line)
    assert words[:2] == ["lora-alloy", "tune"]
    assert main([*words[1:], "--json", "told.json"]) == 0
    told = (place / "told.json").read_text()
    assert '"largest"' in told and "no score" not in told


def test_every_mode_and_keyword_and_the_variable_are_told():
    told = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert {*MODES, *KEYWORDS, VARIABLE} <= told
