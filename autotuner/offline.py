"""Evaluators outside ComfyUI: no model is at hand, so they get the merged candidate as a LoRA file.

Its strength is 1 in any loader. It lies in a private folder that is gone when the evaluator has answered.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from ..analysis.report import make_analysis
from ..core.errors import RecipeError, SaveError
from ..core.log import log
from ..core.text import whole
from ..merging.deferred import kept
from ..merging.saving import named, save_patches
from .answers import Answer, answer_in, failure
from .evaluator import Asked, Function, called, check_combining
from .search import Trial
from .verdict import Verdict

PLACE = "{lora}"
TIMEOUT = 600.0
GLANCE = 0.05
TAIL = 16384  # bytes of what a command printed that are read

Facts: TypeAlias = "Mapping[str, Any]"
"""What an evaluator is told of a candidate: `name`, `config`, `analysis_summary`; JSON values."""
Tell: TypeAlias = "Callable[[], None]"
"""Called while it works; what it raises ends the work."""
Judge: TypeAlias = "Callable[[Path, Facts, Tell], Answer]"
"""Scores one LoRA file."""


class OfflineEvaluator:
    """Has every candidate judged as a file, one after the other.

    Args:
        judge: scores a file.
        mode: how its score counts beside ours.
        weight: its share in a `blend`.
    """

    def __init__(self, judge: Judge, mode: str = "blend", weight: float = 0.5) -> None:
        check_combining(mode, weight)
        self._judge, self._mode, self._weight = judge, mode, weight

    def __call__(self, trial: Trial) -> Verdict:
        """The verdict; what goes wrong is in its details."""
        with TemporaryDirectory(prefix="lora-alloy-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "candidate.safetensors"
            try:
                write(trial, path)
            except SaveError as problem:
                answer = failure(str(problem))
            else:
                answer = self._judge(path, facts_of(trial), lambda: trial.progress("evaluate", 0, 1))
        verdict = answer.verdict(trial.candidate.score, self._mode, self._weight)
        if verdict.error:
            log.warning("the evaluator gave no score for %s: %s", trial.candidate.name, verdict.error)
        return verdict


def write(trial: Trial, path: Path) -> None:
    """Save a candidate as a LoRA file in ComfyUI's naming, and prove it.

    Raises:
        SaveError: the place cannot be written.
        ProofError: the file does not give back what was merged.
    """
    stack = trial.stack
    patches = [kept(patch) for patch in trial.patches]
    pieces = named(patches, "comfyui", stack.family, stack.spellings, stack.height)
    metadata = {"format": "pt", "candidate": whole(trial.candidate.name)}
    save_patches(path, pieces, "comfyui", metadata, stack.lead, trial.progress)


def facts_of(trial: Trial) -> Facts:
    """What a candidate is, and how the LoRAs of its stack relate."""
    analysis = make_analysis(trial.stack, trial.measured)
    pairs = [pair for pair in analysis.pairs if pair.shared_count]
    summary = {
        "n_loras": len(analysis.parts),
        "prefix_count": len(trial.stack.groups),
        "avg_cosine_sim": _mean([pair.cosine for pair in pairs]),
        "avg_conflict_ratio": _mean([pair.conflict for pair in pairs]),
        "avg_excess_conflict": _mean([pair.excess for pair in pairs]),
    }
    candidate = trial.candidate
    return {
        "name": candidate.name,
        "config": candidate.recipe.to_json(),
        "analysis_summary": summary,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@dataclass(frozen=True)
class FunctionJudge:
    """A user's function, in this process: `model` and `clip` are None, `lora_data` says where the file is."""

    asked: Asked
    function: Function

    def __call__(self, path: Path, facts: Facts, tell: Tell) -> Answer:
        """Ask the function."""
        tell()
        asked = self.asked
        lora_data = {"path": str(path), "output_strength": 1.0, "clip_strength": 1.0, "name": facts["name"]}
        keywords = {
            "model": None,
            "clip": None,
            "lora_data": lora_data,
            "config": facts["config"],
            "context": asked.context,
            "analysis_summary": facts["analysis_summary"],
        }
        return called(self.function, keywords)


@dataclass(frozen=True)
class CommandJudge:
    """A program that is given the path and prints a score last; no shell is between.

    Attributes:
        words: the command; `{lora}` in them stands for the path.
        timeout: seconds after which it is ended.
    """

    words: tuple[str, ...]
    timeout: float = TIMEOUT

    @staticmethod
    def of(text: str, timeout: float = TIMEOUT) -> "CommandJudge":
        """From a line as it is typed.

        Raises:
            RecipeError: the line is no command, there is no such program, or the time is none.
        """
        try:
            words = _split(text)
        except ValueError as problem:
            raise RecipeError(
                f"The evaluator's command `{text}` cannot be read ({problem}); check its quotes."
            ) from None
        if not any(PLACE in word for word in words):
            raise RecipeError(
                f"The evaluator's command `{text}` must say where the LoRA's path goes: `{PLACE}`."
            )
        if shutil.which(words[0]) is None:
            raise RecipeError(f"There is no program `{words[0]}`, which the evaluator's command begins with.")
        if not (isfinite(timeout) and timeout > 0):
            raise RecipeError(
                f"The evaluator's time-out is {timeout}; it must be a number of seconds above 0."
            )
        return CommandJudge(tuple(words), timeout)

    def __call__(self, path: Path, facts: Facts, tell: Tell) -> Answer:
        """Run the program, and end it with all that it started if it takes too long or the work is cancelled."""
        words = [word.replace(PLACE, str(path)) for word in self.words]
        with TemporaryDirectory(prefix="lora-alloy-", ignore_cleanup_errors=True) as folder:
            printed, complained = Path(folder) / "out", Path(folder) / "err"
            # Files and not pipes: whatever the program leaves behind may hold a pipe open for ever.
            with printed.open("wb") as out, complained.open("wb") as err:
                try:
                    process = subprocess.Popen(
                        words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
                    )
                except OSError as problem:
                    return failure(f"`{words[0]}` cannot be started ({problem.strerror or problem}).")
            code = _waited(process, self.timeout, tell)
            if code is None:
                return failure(
                    f"`{words[0]}` took longer than {self.timeout:g} s and was ended.{_end(complained)}"
                )
            if code:
                return failure(f"`{words[0]}` ended with code {code}.{_end(complained)}")
            return answer_in(_tail(printed))


def _split(text: str) -> Sequence[str]:
    if os.name != "nt":
        return shlex.split(text)
    # There a backslash is a part of a path, and no escape.
    return [re.sub(r'^"(.*)"$', r"\1", word) for word in shlex.split(text, posix=False)]


def _waited(process: "subprocess.Popen[bytes]", timeout: float, tell: Tell) -> int | None:
    """The exit code of a process, None if it took too long; then it and its children are gone."""
    until = time.monotonic() + timeout
    try:
        while time.monotonic() < until:
            tell()
            with suppress(subprocess.TimeoutExpired):
                return process.wait(GLANCE)
        return None
    finally:
        if process.poll() is None:
            # Not after it has ended by itself: it may mean to leave a server for the next candidate.
            if os.name != "nt":
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()


def _tail(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - TAIL))
        return stream.read().decode("utf-8", "replace")


def _end(path: Path) -> str:
    lines = [line.strip() for line in _tail(path).splitlines() if line.strip()]
    return f" It said: {lines[-1][:400]}" if lines else ""
