"""Candidates judged by several ComfyUI servers at once, each through its own queue; a lost server loses none.

Every candidate is saved into the folder of LoRAs that the servers read, runs through a workflow on whichever server is
free, and is removed again. What fails on one server is tried on each other one.
"""

import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from ..core.errors import RecipeError, SaveError
from ..core.log import log
from ..core.wholefile import refuse_place
from .answers import Answer, failure
from .comfy_queue import ComfyQueue, PromptFailedError, ServerLostError, StoppedError
from .evaluator import check_combining
from .offline import write
from .search import Trial
from .verdict import Verdict
from .workflow import Workflow

LEAVE = 15.0  # seconds


@dataclass(eq=False)
class _Task:
    name: str
    path: Path
    own: float
    future: "Future[Verdict]" = field(default_factory=Future)
    tried: set[ComfyQueue] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)


class ComfyWorkers:
    """An evaluator that hands its candidates to servers; enter it before the sweep, leave it afterwards.

    Args:
        queues: the servers.
        workflow: scores one LoRA.
        folder: the folder of LoRAs that every server reads, as it is reached from here.
        mode: how the score counts beside ours.
        weight: its share in a `blend`.

    Raises:
        RecipeError: there is no server, two are the same, or the folder is none.
        SaveError: nothing can be written there.
    """

    def __init__(
        self,
        queues: Sequence[ComfyQueue],
        workflow: Workflow,
        folder: Path,
        mode: str = "blend",
        weight: float = 0.5,
    ) -> None:
        check_combining(mode, weight)
        if not queues:
            raise RecipeError("There is no ComfyUI server to evaluate on; name one.")
        if len({queue.url for queue in queues}) < len(queues):
            raise RecipeError("A ComfyUI server is named twice; name each once.")
        if not folder.is_dir():
            raise RecipeError(f"`{folder}` is no folder; name the folder of LoRAs that the servers read.")
        refuse_place(folder / "lora-alloy.safetensors")
        self._workflow, self._folder, self._mode, self._weight = workflow, folder, mode, weight
        self._queues = tuple(queues)
        self._alive = list(queues)
        self._waiting: list[_Task] = []
        self._unfinished: list[_Task] = []
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "ComfyWorkers":
        for queue in self._queues:
            thread = threading.Thread(target=self._serve, args=(queue,), name=queue.name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(LEAVE)  # a server may hang
        for task in list(self._unfinished):
            task.future.cancel()
            _remove(task.path)

    def __call__(self, trial: Trial) -> "Verdict | Future[Verdict]":
        """Save a candidate for the servers, and let one of them have it."""
        path = self._folder / f"lora-alloy-{secrets.token_hex(6)}.safetensors"
        task = _Task(trial.candidate.name, path, trial.candidate.score)
        with self._changed:
            self._unfinished.append(task)
        try:
            write(trial, path)
        except SaveError as problem:
            return failure(str(problem)).verdict(task.own, self._mode, self._weight)
        with self._changed:
            self._waiting.append(task)
            self._give_up_hopeless()
            self._changed.notify_all()
        return task.future

    def _serve(self, queue: ComfyQueue) -> None:
        """Work for one server until it is lost, or nobody waits."""
        while (task := self._next(queue)) is not None:
            try:
                outputs = queue.run(self._workflow.prompt(task.path.name), self._stop)
                answer = self._workflow.answer(outputs)
                if answer is None:
                    raise PromptFailedError(f"its node {self._workflow.score_node} showed no score")
            except StoppedError:
                return
            except PromptFailedError as problem:
                self._again(task, queue, str(problem))
            except ServerLostError as problem:
                log.warning("the ComfyUI server %s is lost: %s", queue.name, problem)
                with self._changed:
                    self._alive.remove(queue)
                self._again(task, queue, str(problem))
                return
            except BaseException as problem:
                task.future.set_exception(problem)  # or whoever waits would wait for ever
                raise
            else:
                self._finish(task, answer)

    def _next(self, queue: ComfyQueue) -> _Task | None:
        with self._changed:
            while not self._stop.is_set():
                task = next((one for one in self._waiting if queue not in one.tried), None)
                if task is not None:
                    self._waiting.remove(task)
                    if task.future.cancelled():
                        continue
                    task.tried.add(queue)
                    return task
                self._changed.wait()
        return None

    def _again(self, task: _Task, queue: ComfyQueue, reason: str) -> None:
        log.info("%s came to nothing on %s: %s", task.name, queue.name, reason)
        task.reasons.append(f"{queue.name}: {reason}")
        with self._changed:
            self._waiting.insert(0, task)
            self._give_up_hopeless()
            self._changed.notify_all()

    def _give_up_hopeless(self) -> None:
        """Answer for the candidates that no server is left for; the lock is held."""
        hopeless = [task for task in self._waiting if not set(self._alive) - task.tried]
        for task in hopeless:
            self._waiting.remove(task)
            why = "; ".join(task.reasons) or "all servers were lost before"
            self._finish(task, failure(f"No ComfyUI server gave a score. {why}."))

    def _finish(self, task: _Task, answer: Answer) -> None:
        _remove(task.path)
        with self._changed:
            if task in self._unfinished:
                self._unfinished.remove(task)
        if task.future.set_running_or_notify_cancel():
            task.future.set_result(answer.verdict(task.own, self._mode, self._weight))


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def require_folder(folder: str) -> Path:
    """The folder of LoRAs, as a path.

    Raises:
        SaveError: none was named.
    """
    if not folder:
        raise SaveError("Name the folder of LoRAs that the ComfyUI servers read (`--worker-loras FOLDER`).")
    return Path(folder)
