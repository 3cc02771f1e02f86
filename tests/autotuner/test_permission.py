"""Only the machine's owner lets a workflow's evaluator run."""

import json
import os

import pytest

from lora_alloy.autotuner.permission import VARIABLE, is_allowed, require_allowed
from lora_alloy.core.errors import FileError, RecipeError


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def test_nothing_is_allowed_by_default_and_the_message_says_how(tmp_path):
    settings = tmp_path / "lora_alloy.json"
    assert not is_allowed("judge.py") and not is_allowed("judge.py", settings)
    with pytest.raises(RecipeError) as refused:
        require_allowed("judge.py", settings)
    for part in ("judge.py", VARIABLE, str(settings), "disconnect"):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("Yes", True), ("0", False), ("off", False), ("", False)]
)
def test_a_word_in_the_environment_allows_all_or_none(monkeypatch, value, expected):
    monkeypatch.setenv(VARIABLE, value)
    assert is_allowed("judge.py") is expected


def test_a_list_in_the_environment_allows_what_it_names(monkeypatch, tmp_path):
    judge = tmp_path / "judge.py"
    judge.write_text("")
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(judge), "scores.pictures"]))
    assert is_allowed(str(tmp_path / "." / "judge.py")) and is_allowed("scores.pictures")
    assert not is_allowed(str(tmp_path / "other.py")) and not is_allowed("scores") and not is_allowed("\0")
    monkeypatch.chdir(tmp_path)
    require_allowed("judge.py")


def test_a_file_of_the_owner_allows_all_or_what_it_names(tmp_path):
    settings = tmp_path / "lora_alloy.json"
    for given, one, other in (
        (True, True, True),
        (False, False, False),
        (["a.py"], True, False),
        ([], False, False),
    ):
        settings.write_text(json.dumps({"evaluators": given}))
        assert (is_allowed("a.py", settings), is_allowed("b.py", settings)) == (one, other)
    settings.write_text("{}")
    assert not is_allowed("a.py", settings)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"evaluators": "a.py"}', '{"evaluators": [1]}', '{"evaluators": 1}']
)
def test_a_damaged_file_allows_nothing_and_is_named(tmp_path, text):
    settings = tmp_path / "lora_alloy.json"
    settings.write_text(text)
    with pytest.raises(FileError, match=r"lora_alloy\.json"):
        is_allowed("a.py", settings)
