"""Evaluators that are given a file: commands, and functions outside ComfyUI."""

import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from lora_alloy import Recipe, load, merge, tune
from lora_alloy.autotuner.answers import answer_in
from lora_alloy.autotuner.evaluators import evaluator_of, judge_of
from lora_alloy.autotuner.offline import CommandJudge, OfflineEvaluator
from lora_alloy.core.errors import RecipeError
from lora_alloy_testing.builders import dense, largest_difference, stack_of, toy_lora
from lora_alloy_testing.sweeps import shorten

SIZE = "import os, sys; print('size', os.path.getsize(sys.argv[1])); "


@pytest.fixture(autouse=True)
def short(monkeypatch):
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def stack():
    return stack_of(toy_lora(1), toy_lora(2))


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def command(code, timeout=60.0):
    return CommandJudge((sys.executable, "-c", code, "{lora}"), timeout)


def tuned(stack, code, timeout=60.0, top_n=2, **how):
    return tune(stack, top_n=top_n, evaluate=OfflineEvaluator(command(code, timeout), "external_only"), **how)


def test_a_command_gets_the_merged_candidate_as_a_lora_and_nothing_is_left_behind(stack, scratch, tmp_path):
    copy = tmp_path / "seen.safetensors"
    code = f"import shutil, sys; shutil.copy(sys.argv[1], {str(copy)!r}); print(0.25)"
    found = tuned(stack, code, top_n=1)
    assert found.ranked[0].verdict.external == 0.25
    again = merge([copy], Recipe(method="weighted_sum", auto_strength=False, dtype="float32"))
    assert largest_difference(dense(again), dense(found.best)) < 1e-6
    assert not list(scratch.iterdir())


def test_the_folder_is_private(stack, scratch):
    if os.name == "nt":
        pytest.skip("Windows gives a user's temporary folder to him alone")
    code = "import os, sys; print(os.stat(os.path.dirname(sys.argv[1])).st_mode & 0o077 == 0)"
    assert tuned(stack, f"{code[:-1]} and 1 or 0)", top_n=1).ranked[0].verdict.external == 1.0


def test_a_formula_is_shown_as_well(scratch):
    loras = [toy_lora(1), toy_lora(2), toy_lora(3)]
    found = tune(
        stack_of(*loras),
        Recipe(formula="(1+2)+3"),
        top_n=1,
        evaluate=OfflineEvaluator(command(SIZE + "print(1)")),
    )
    assert found.ranked[0].verdict.external == 1.0


@pytest.mark.parametrize(
    ("printed", "score", "details"),
    [
        ("0.5", 0.5, None),
        ("loading …\n\n 3 \n\n", 1.0, None),
        ('{"score": 0.5, "details": {"a": 1}}', 0.5, {"a": 1}),
        ("null", None, None),
        ('warm-up\r\n{"score": -1}\r\n', 0.0, None),
    ],
)
def test_the_last_line_is_the_answer(printed, score, details):
    answer = answer_in(printed)
    assert (answer.score, answer.details) == (score, details)


@pytest.mark.parametrize(
    "printed", ["", " \n", "good", "[0.5]", "NaN", "nan", "Infinity", '{"value": 1}', "[" * 9999]
)
def test_a_last_line_that_is_no_score_is_quoted(printed):
    answer = answer_in(printed)
    assert answer.score is None and "error" in answer.details and len(answer.details["error"]) < 500


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import sys; print(0.5); print('no GPU', file=sys.stderr); sys.exit(3)",
            "ended with code 3. It said: no GPU",
        ),
        ("pass", "It printed nothing"),
        ("print('good')", "'good'"),
    ],
)
def test_a_command_that_fails_costs_the_score_and_not_the_sweep(stack, scratch, code, said):
    found = tuned(stack, code)
    assert all(said in one.verdict.error and one.verdict.external is None for one in found.ranked[:2])
    assert any("no score for 2 of 2" in note for note in found.tuned.notes)
    assert not list(scratch.iterdir())


def test_a_command_that_takes_too_long_is_ended_with_its_children(stack, scratch, tmp_path):
    mark = tmp_path / "alive"
    child = f"import time\nwhile True: open({str(mark)!r}, 'a').write('x'); time.sleep(0.02)"
    code = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]);"
        f" print('waiting', file=sys.stderr, flush=True); time.sleep(60)"
    )
    began = time.monotonic()
    found = tuned(stack, code, timeout=1.5, top_n=1)
    assert time.monotonic() - began < 30
    assert "took longer than 1.5 s and was ended. It said: waiting" in found.ranked[0].verdict.error
    if os.name != "nt":
        size = mark.stat().st_size
        time.sleep(0.3)
        assert mark.stat().st_size == size
    assert not list(scratch.iterdir())


def test_cancelling_ends_the_command_at_once_and_leaves_no_file(stack, scratch, tmp_path):
    mark = tmp_path / "process"

    class CancelledError(Exception):
        pass

    def progress(what, done, total):
        if what == "evaluate" and mark.exists() and mark.read_text():
            raise CancelledError

    code = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(CancelledError):
        tuned(stack, code, progress=progress)
    with suppress(ProcessLookupError):
        os.kill(int(mark.read_text()), signal.SIGTERM)
        pytest.fail("the command still runs")
    assert not list(scratch.iterdir())


def test_much_output_on_both_streams_blocks_nothing(stack, scratch):
    code = "import sys; print('x' * 3_000_000); print('y' * 3_000_000, file=sys.stderr); print(0.5)"
    assert tuned(stack, code, top_n=1).ranked[0].verdict.external == 0.5


def test_no_shell_reads_the_command(tmp_path):
    judge = judge_of(f'"{sys.executable}" -c "print(1)" {{lora}} ; touch {tmp_path}/hacked')
    assert judge.words[3:] == ("{lora}", ";", "touch", f"{tmp_path}/hacked")
    assert judge(tmp_path / "a $(touch b) c", {}, lambda: None).score == 1.0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no-such-program-here {lora}", "There is no program `no-such-program-here`"),
        ("python '{lora}", "check its quotes"),
        ("/no/such/file.py", "There is no evaluator"),
    ],
)
def test_an_evaluator_that_cannot_be_is_refused_before_any_work(text, said):
    with pytest.raises(RecipeError, match=said), evaluator_of(text):
        pytest.fail("it was taken")


def test_a_time_out_must_be_a_time():
    for timeout in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RecipeError, match="time-out"):
            CommandJudge.of(f'"{sys.executable}" {{lora}}', timeout)


@pytest.mark.parametrize("suffix", ["", ":evaluate_candidate", ":other"])
def test_a_function_outside_comfyui_gets_the_path(stack, scratch, tmp_path, suffix):
    path = tmp_path / "judge.py"
    path.write_text(
        "from pathlib import Path\n"
        "def evaluate_candidate(*, model, clip, lora_data, config, context, analysis_summary):\n"
        "    assert model is None and clip is None and Path(lora_data['path']).is_file()\n"
        "    return {'score': context['score'], 'details': [config['method'], analysis_summary['n_loras']]}\n"
        "other = evaluate_candidate\n"
    )
    with evaluator_of(f"{path}{suffix}", "external_only", context={"score": 0.125}) as evaluate:
        first = tune(stack, top_n=1, evaluate=evaluate).ranked[0]
    assert first.verdict.external == 0.125 and first.verdict.details == [first.recipe.method, 2]
    assert not list(scratch.iterdir())


def test_a_full_disk_costs_the_score_and_not_the_sweep(stack, scratch, monkeypatch):
    from lora_alloy.core.errors import SaveError

    def full(*_):
        raise SaveError("no space")

    monkeypatch.setattr(sys.modules[OfflineEvaluator.__module__], "write", full)
    found = tuned(stack, "print(1)")
    assert [one.verdict.error for one in found.ranked[:2]] == ["no space", "no space"]


def test_the_flags_of_the_command_line_make_the_evaluator(tmp_path, stack):
    import argparse

    from lora_alloy.cli.evaluator_options import add_evaluator, chosen_evaluator
    from lora_alloy.cli.options import UsageError

    parser = argparse.ArgumentParser()
    add_evaluator(parser)
    path = tmp_path / "judge.py"
    path.write_text("def evaluate_candidate(*, context, **_):\n    return context['score']\n")
    flags = [
        "--evaluator",
        str(path),
        "--evaluator-mode",
        "multiply",
        "--evaluator-context",
        '{"score": 0.5}',
    ]
    with chosen_evaluator(parser.parse_args(flags)) as evaluate:
        assert tune(stack, top_n=1, evaluate=evaluate).ranked[0].verdict.external == 0.5
    with chosen_evaluator(parser.parse_args([])) as nobody:
        assert nobody is None
    with pytest.raises(UsageError, match="name one with"):
        chosen_evaluator(parser.parse_args(["--workers", "127.0.0.1:1"]))
    with pytest.raises(RecipeError, match="no JSON"):
        chosen_evaluator(parser.parse_args(["--evaluator", str(path), "--evaluator-context", "{"]))
    for flags, said in (
        (["--evaluator", "a.json"], "host:port"),
        (["--evaluator", str(path), "--workers", "127.0.0.1:1"], "evaluate a workflow"),
        (["--evaluator", str(path), "--workers", "dask:0"], "number of processes"),
    ):
        with pytest.raises(RecipeError, match=said), ExitStack() as entered:
            entered.enter_context(chosen_evaluator(parser.parse_args(flags)))


def test_a_saved_candidate_says_what_it_is(stack, scratch, tmp_path):
    copy = tmp_path / "seen.safetensors"
    found = tuned(stack, f"import shutil, sys; shutil.copy(sys.argv[1], {str(copy)!r}); print(1)", top_n=1)
    assert load(Path(copy)).tensors.metadata["candidate"] == found.ranked[0].name
