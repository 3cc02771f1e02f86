"""Candidates judged as files by a `dask.distributed` cluster; needs the optional packages of `workers`.

The cluster runs what it lost again by itself. What it cannot do at all is done here, so no candidate is lost with it.
Only plain values travel, and the bytes of the file: the workers need this package and the evaluator, and no shared
folder.
"""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from types import TracebackType
from typing import Any

from ..core.errors import RecipeError, SaveError
from ..core.log import log
from .answers import Answer, failure
from .evaluator import Asked, Functions, check_combining
from .offline import CommandJudge, Facts, FunctionJudge, Judge, facts_of, write
from .search import Trial
from .verdict import Verdict

GLANCE = 0.2


class DaskWorkers:
    """An evaluator that hands its candidates to a cluster; enter it before the sweep, leave it afterwards.

    Args:
        judge: scores a file, as plain values: what `told_of` gives.
        address: of a scheduler, such as `tcp://10.0.0.2:8786`; or a number of processes of this machine.
        mode: how the score counts beside ours.
        weight: its share in a `blend`.
        connect_seconds: that the scheduler may take to answer at first.

    Raises:
        RecipeError: the packages are missing, or the scheduler does not answer.
    """

    def __init__(
        self,
        judge: Judge,
        address: str | int,
        mode: str = "blend",
        weight: float = 0.5,
        connect_seconds: float = 20.0,
    ) -> None:
        check_combining(mode, weight)
        self._told, self._local = told_of(judge), judge
        self._address, self._mode, self._weight = address, mode, weight
        self._connect_seconds = connect_seconds
        self._stop = Event()
        self._client: Any = None
        self._cluster: Any = None
        self._library = _library()

    def __enter__(self) -> "DaskWorkers":
        try:
            if isinstance(self._address, int):
                self._cluster = self._library.LocalCluster(
                    n_workers=self._address, threads_per_worker=1, dashboard_address=None
                )
            self._client = self._library.Client(self._cluster or self._address, timeout=self._connect_seconds)
        except (OSError, ValueError, RuntimeError) as problem:
            self._close()
            raise RecipeError(
                f"No dask scheduler answers at `{self._address}` ({problem}). Start one with `dask scheduler`, and"
                " workers with `dask worker`."
            ) from None
        self._pool = ThreadPoolExecutor(thread_name_prefix="evaluate")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
        self._close()

    def __call__(self, trial: Trial) -> "Verdict | Future[Verdict]":
        """Send a candidate to the cluster."""
        own = trial.candidate.score
        with TemporaryDirectory(prefix="lora-alloy-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "candidate.safetensors"
            try:
                write(trial, path)
            except SaveError as problem:
                return failure(str(problem)).verdict(own, self._mode, self._weight)
            data = path.read_bytes()
        facts = facts_of(trial)
        # A user's function may answer otherwise each time, and it may have changed: nothing is remembered.
        sent = self._client.submit(scored, self._told, data, facts, pure=False)
        return self._pool.submit(self._awaited, sent, data, facts, own)

    def _awaited(self, sent: Any, data: bytes, facts: Facts, own: float) -> Verdict:
        try:
            answer = self._fetched(sent)
        except _LostError as problem:
            log.warning("the cluster lost %s (%s); it is evaluated here", facts["name"], problem)
            answer = Answer(*_judged(self._local, data, facts, self._stop))
        return answer.verdict(own, self._mode, self._weight)

    def _fetched(self, sent: Any) -> Answer:
        """What the cluster answered."""
        while True:
            if self._stop.is_set():
                sent.cancel()
                return failure("It was cancelled.")
            if sent.status in ("finished", "error", "cancelled", "lost"):
                break
            if self._client.status != "running":
                raise _LostError("its scheduler is gone")
            time.sleep(GLANCE)
        if sent.status != "finished":
            raise _LostError(f"{sent.status}: {sent.exception()}" if sent.status == "error" else sent.status)
        try:
            score, details = sent.result(timeout=60)
        except (OSError, RuntimeError, ValueError, self._library.TimeoutError) as problem:
            raise _LostError(str(problem)) from None
        return Answer(score, details)

    def _close(self) -> None:
        for one in (self._client, self._cluster):
            if one is not None:
                one.close()


class _LostError(Exception):
    pass


def told_of(judge: Judge) -> dict[str, Any]:
    """A judge as plain values, which a worker elsewhere makes one of again.

    Raises:
        RecipeError: it is of a kind that cannot travel.
    """
    if isinstance(judge, CommandJudge):
        return {"words": list(judge.words), "timeout": judge.timeout}
    if isinstance(judge, FunctionJudge):
        asked = judge.asked
        where = (
            str(Path(asked.module_path).resolve()) if Path(asked.module_path).is_file() else asked.module_path
        )
        return {"module_path": where, "callable_name": asked.callable_name, "context": asked.context}
    raise RecipeError("Only a function or a command can be evaluated by a cluster.")


def scored(told: Mapping[str, Any], data: bytes, facts: Facts) -> tuple[float | None, Any]:
    """On a worker: the score and the details for the bytes of a LoRA file."""
    judge: Judge
    if "words" in told:
        judge = CommandJudge(tuple(told["words"]), told["timeout"])
    else:
        asked = Asked(told["module_path"], told["callable_name"], context=told["context"])
        try:
            judge = FunctionJudge(asked, _functions().get(asked.module_path, asked.callable_name))
        except RecipeError as problem:
            return None, {"error": str(problem)}
    return _judged(judge, data, facts)


def _judged(judge: Judge, data: bytes, facts: Facts, stop: Event | None = None) -> tuple[float | None, Any]:
    def tell() -> None:
        if stop is not None and stop.is_set():
            raise _LostError("cancelled")

    with TemporaryDirectory(prefix="lora-alloy-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "candidate.safetensors"
        try:
            path.write_bytes(data)
            answer = judge(path, facts, tell)
        except OSError as problem:
            answer = failure(f"The candidate cannot be written ({problem.strerror}).")
        except _LostError:
            answer = failure("It was cancelled.")
    return answer.score, answer.details


def _functions() -> Functions:
    """Of this worker process, so that what a function keeps outlives a candidate."""
    worker = _library().get_worker()
    if not hasattr(worker, "lora_alloy_functions"):
        worker.lora_alloy_functions = Functions()
    return worker.lora_alloy_functions


def _library() -> Any:
    try:
        import distributed
    except ImportError:
        raise RecipeError(
            "Evaluating on a dask cluster needs the package `distributed`; install it with `pip install"
            " 'comfyui-lora-alloy[workers]'`, or evaluate here."
        ) from None
    return distributed
