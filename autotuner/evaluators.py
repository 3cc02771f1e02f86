"""The evaluator that a line of text asks for, as `--evaluator` and `--workers` give it.

score.py, score.py:judge, package.module:judge      a function
python judge.py {lora}                              a command
workflow.json, with ComfyUI servers as workers      a workflow
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import RecipeError
from .comfy_queue import ComfyQueue
from .distributed import DaskWorkers
from .evaluator import DEFAULT_NAME, Asked, Functions
from .offline import PLACE, TIMEOUT, CommandJudge, FunctionJudge, Judge, OfflineEvaluator
from .search import Evaluate
from .workers import ComfyWorkers, require_folder
from .workflow import Workflow

DASK = ("tcp://", "tls://", "dask:")


@contextmanager
def evaluator_of(
    text: str,
    mode: str = "blend",
    weight: float = 0.5,
    *,
    context: Any = None,
    timeout: float = TIMEOUT,
    workers: Sequence[str] = (),
    folder: str = "",
    score_node: str = "",
) -> Iterator[Evaluate]:
    """The evaluator, ready for a sweep; what it started is gone afterwards.

    The user named it himself, so it needs no permission. Code is loaded, programs and servers are looked for before
    the sweep begins.

    Args:
        text: the evaluator.
        mode: how its score counts beside ours: `blend`, `external_only` or `multiply`.
        weight: its share in a `blend`, 0 to 1.
        context: JSON values for a function.
        timeout: seconds that a command or a workflow may take for a candidate.
        workers: addresses of ComfyUI servers; or one of a dask scheduler (`tcp://host:8786`), or `dask:N` for N
            processes of this machine.
        folder: the folder of LoRAs that the ComfyUI servers read.
        score_node: the node of a workflow that shows the score; the one titled `score` if empty.

    Raises:
        FileError: a workflow cannot be read.
        RecipeError: there is no such evaluator, or it does not go with these workers.
        SaveError: nothing can be written into the folder.
    """
    is_workflow = text.lower().endswith(".json") and PLACE not in text
    dask = [one for one in workers if one.startswith(DASK)]
    if is_workflow:
        if not workers or dask:
            raise RecipeError(
                "A workflow is evaluated by ComfyUI servers: name them with `--workers host:port,host:port`."
            )
        queues = [ComfyQueue(address, timeout=timeout) for address in workers]
        workflow = Workflow.read(Path(text), score_node)
        with ComfyWorkers(queues, workflow, require_folder(folder), mode, weight) as servers:
            yield servers
        return
    judge = judge_of(text, context, timeout)
    if not workers:
        yield OfflineEvaluator(judge, mode, weight)
        return
    if len(workers) != 1 or not dask:
        raise RecipeError(
            "ComfyUI servers evaluate a workflow (`--evaluator score.json`); a function or a command goes to one dask"
            " scheduler (`--workers tcp://host:8786`, or `--workers dask:4` for four processes of this machine)."
        )
    with DaskWorkers(judge, _cluster(dask[0]), mode, weight) as cluster:
        yield cluster


def judge_of(text: str, context: Any = None, timeout: float = TIMEOUT) -> Judge:
    """What scores a file: a command where the text says `{lora}`, a function otherwise.

    Raises:
        RecipeError: there is no such command or function.
    """
    if PLACE in text:
        return CommandJudge.of(text, timeout)
    path, _, name = text.rpartition(":")
    if not path or not name.isidentifier() or Path(text).is_file():
        path, name = text, DEFAULT_NAME
    asked = Asked(path.strip(), name, context={} if context is None else context)
    return FunctionJudge(asked, Functions().get(asked.module_path, asked.callable_name))


def _cluster(address: str) -> str | int:
    if not address.startswith("dask:"):
        return address
    count = address.removeprefix("dask:")
    if not count.isdecimal() or not 1 <= int(count) <= 1024:
        raise RecipeError(f"`{address}` names no number of processes; write for example `dask:4`.")
    return int(count)
