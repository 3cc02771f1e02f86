"""Candidates judged by a dask cluster of this machine; a worker that dies loses none."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from lora_alloy import tune
from lora_alloy.autotuner.distributed import DaskWorkers, scored, told_of
from lora_alloy.autotuner.evaluators import evaluator_of, judge_of
from lora_alloy.core.errors import RecipeError
from lora_alloy_testing.builders import stack_of, toy_lora
from lora_alloy_testing.sweeps import shorten

ROOT = Path(__file__).resolve().parents[2]
needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None,
    reason="evaluating on a cluster needs `distributed`: python alloy.py setup workers",
)
JUDGE = """
import os
calls = 0
def evaluate_candidate(*, model, clip, lora_data, config, context, analysis_summary):
    global calls
    calls += 1
    if context.get("dies") and not os.path.exists(context["dies"]):
        open(context["dies"], "w").close()
        os._exit(1)
    if context.get("fails"):
        raise ValueError("no picture")
    size = os.path.getsize(lora_data["path"])
    return {"score": 0.5, "details": {"size": size, "calls": calls, "process": os.getpid()}}
"""
# Workers of a cluster find this package installed; those of the tests find the checkout.
STARTER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("lora_alloy", {root!r} + "/__init__.py")
sys.modules["lora_alloy"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["lora_alloy"])
"""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    shorten(monkeypatch)


@pytest.fixture(scope="module")
def stack():
    return stack_of(toy_lora(1), toy_lora(2))


@pytest.fixture
def judge(tmp_path):
    path = tmp_path / "judge.py"
    path.write_text(JUDGE)
    return path


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """The address of a scheduler with two workers, for all tests that leave it alive."""
    with cluster(tmp_path_factory.mktemp("cluster")) as (address, _):
        yield address


@contextmanager
def cluster(folder):
    """A scheduler with two workers, each in a process of its own: its address, and the processes."""
    import distributed

    preload, place = folder / "preload.py", folder / "scheduler.json"
    preload.write_text(STARTER.format(root=str(ROOT)))
    where = str(Path(distributed.__file__).parents[1])
    paths = os.pathsep.join(filter(None, [where, os.environ.get("PYTHONPATH")]))
    started = []

    def start(program, *words):
        command = [
            sys.executable,
            "-m",
            f"distributed.cli.{program}",
            "--scheduler-file",
            str(place),
            "--no-dashboard",
        ]
        command += ["--preload", str(preload), *words]
        with (folder / f"{len(started)}.log").open("wb") as log:
            environment = {**os.environ, "PYTHONPATH": paths}
            started.append(subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log))

    try:
        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
        until = time.monotonic() + 120
        while not place.exists():
            assert time.monotonic() < until, (folder / "0.log").read_text()
            time.sleep(0.1)
        for _ in range(2):
            start("dask_worker", "--nthreads", "1", "--nanny", "--local-directory", str(folder))
        yield json.loads(place.read_text())["address"], started
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_a_cluster_without_its_package_is_refused_with_what_to_install(judge):
    if importlib.util.find_spec("distributed") is not None:
        pytest.skip("`distributed` is installed")
    with pytest.raises(RecipeError, match="pip install"), evaluator_of(str(judge), workers=["dask:2"]):
        pass


def test_what_travels_is_plain_values(judge):
    for one in (judge_of(str(judge), {"a": 1}), judge_of(f'"{sys.executable}" {{lora}}')):
        told = told_of(one)
        assert json.loads(json.dumps(told)) == told


def test_a_command_is_run_on_the_bytes_of_the_file():
    told = told_of(
        judge_of(f'"{sys.executable}" -c "import sys; print(len(open(sys.argv[1]).read()) / 8)" {{lora}}')
    )
    assert scored(told, b"abcd", {"name": "x"}) == (0.5, None)


@needs_dask
@pytest.mark.filterwarnings("ignore")
class TestACluster:
    def test_candidates_run_on_its_workers_and_functions_keep_their_state(self, stack, judge, scheduler):
        with evaluator_of(str(judge), "external_only", workers=[scheduler]) as evaluate:
            found = tune(stack, top_n=4, evaluate=evaluate)
        told = [one.verdict.details for one in found.ranked[:4]]
        assert [one.verdict.external for one in found.ranked[:4]] == [0.5] * 4, told
        assert os.getpid() not in {one["process"] for one in told}
        by_process = {}
        for one in told:
            by_process.setdefault(one["process"], []).append(one["calls"])
        assert all(sorted(calls) == list(range(1, len(calls) + 1)) for calls in by_process.values())

    def test_a_worker_that_dies_loses_no_candidate(self, stack, judge, scheduler, tmp_path):
        context = {"dies": str(tmp_path / "died")}
        with evaluator_of(str(judge), "external_only", context=context, workers=[scheduler]) as evaluate:
            found = tune(stack, top_n=3, evaluate=evaluate)
        assert (tmp_path / "died").exists()
        assert [one.verdict.external for one in found.ranked[:3]] == [0.5] * 3

    def test_an_exception_is_reported_and_not_retried(self, stack, judge, scheduler):
        with evaluator_of(str(judge), context={"fails": True}, workers=[scheduler]) as evaluate:
            found = tune(stack, top_n=2, evaluate=evaluate)
        assert all(one.verdict.error.startswith("ValueError: no picture") for one in found.ranked[:2])

    def test_without_its_scheduler_the_rest_is_evaluated_here(self, stack, judge, tmp_path):
        with cluster(tmp_path) as (address, started):
            with DaskWorkers(judge_of(str(judge)), address, "external_only") as evaluate:
                for process in started:
                    process.kill()
                found = tune(stack, top_n=2, evaluate=evaluate)
        assert {one.verdict.details["process"] for one in found.ranked[:2]} == {os.getpid()}
        assert [one.verdict.external for one in found.ranked[:2]] == [0.5] * 2

    def test_a_scheduler_that_is_not_there_is_said_so(self, judge, monkeypatch):
        with pytest.raises(RecipeError, match="No dask scheduler answers"):
            DaskWorkers(judge_of(str(judge)), "tcp://127.0.0.1:9", connect_seconds=1).__enter__()

    def test_cancelling_ends_it(self, stack, tmp_path, scheduler):
        class CancelledError(Exception):
            pass

        def progress(what, done, total):
            if what == "evaluate" and total > 1 and (tmp_path / "began").exists():
                raise CancelledError

        slow, mark = tmp_path / "slow.py", tmp_path / "began"
        slow.write_text(
            "import time\ndef evaluate_candidate(**_):\n"
            f"    open({str(mark)!r}, 'w').close()\n    time.sleep(300)\n"
        )
        began = time.monotonic()
        with pytest.raises(CancelledError), evaluator_of(str(slow), workers=[scheduler]) as evaluate:
            tune(stack, top_n=3, evaluate=evaluate, progress=progress)
        assert time.monotonic() - began < 200
