"""Evaluators in Python: a function of the user's own that says what a merged candidate is worth.

Whoever shows one must have asked `permission.py` before, unless the user named the function himself.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from math import isfinite
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypeAlias, get_args

from ..core.errors import RecipeError
from ..core.log import log
from ..core.params import Choice
from .answers import Answer, answer_of, failure
from .search import Trial
from .verdict import CombineMode, Verdict

DEFAULT_NAME = "evaluate_candidate"
KEYWORDS = ("model", "clip", "lora_data", "config", "context", "analysis_summary")
MODES: tuple[str, ...] = next(one.words for one in get_args(CombineMode) if isinstance(one, Choice))

Function: TypeAlias = Callable[..., object]
Arguments: TypeAlias = "Callable[[Trial], AbstractContextManager[Mapping[str, Any]]]"
"""What a host knows of a candidate, under `KEYWORDS` but for the context, for as long as the call takes."""


@dataclass(frozen=True)
class Asked:
    """An evaluator that somebody asks for: AUTOTUNER_EVALUATOR.

    Attributes:
        module_path: a Python file, or an importable module.
        callable_name: of the function in it.
        combine_mode: how its score counts beside ours.
        weight: its share in a `blend`, 0 to 1.
        context: JSON values for the function.
    """

    module_path: str
    callable_name: str = DEFAULT_NAME
    combine_mode: str = "blend"
    weight: float = 0.5
    context: Any = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.module_path, str) or not self.module_path.strip():
            raise RecipeError("The evaluator names no Python file and no module; fill in `module_path`.")
        if not isinstance(self.callable_name, str) or not self.callable_name.strip():
            raise RecipeError("The evaluator names no function; fill in `callable_name`.")
        check_combining(self.combine_mode, self.weight)

    @staticmethod
    def of(given: object) -> "Asked":
        """From the mapping that a node hands over.

        Raises:
            RecipeError: it is none, or says what it must not.
        """
        if not isinstance(given, Mapping):
            raise RecipeError(
                "What is connected as evaluator is none; connect Build AutoTuner Python Evaluator."
            )
        known = {name: given[name] for name in Asked.__dataclass_fields__ if name in given}
        for name in ("module_path", "callable_name"):
            if isinstance(known.get(name), str):
                known[name] = known[name].strip()
        return Asked(**{"module_path": "", **known})


def check_combining(mode: object, weight: object) -> None:
    """Raise a RecipeError unless these are a combine mode and a weight."""
    if mode not in MODES:
        raise RecipeError(f"The evaluator's combine mode is {mode!r:.60}; known: {', '.join(MODES)}.")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not isfinite(weight):
        raise RecipeError(f"The evaluator's weight is {weight!r:.60}; it must be a number from 0 to 1.")


class Functions:
    """Users' functions, each loaded once for a state of its file, so that what it keeps outlives a candidate."""

    def __init__(self) -> None:
        self._modules: dict[tuple[str, int, int], ModuleType] = {}

    def get(self, module_path: str, callable_name: str) -> Function:
        """Load a function; runs the file or imports the module.

        Raises:
            RecipeError: there is no such file or module, it fails, or it has no such function, or one that does not
                take the keywords.
        """
        try:
            function = getattr(self._module(module_path), callable_name, None)
        except RecipeError:
            raise
        except (Exception, SystemExit) as problem:
            told = _told(problem)
            raise RecipeError(
                f"The evaluator `{module_path}` cannot be loaded: {told}. Correct it."
            ) from problem
        if not callable(function):
            raise RecipeError(f"The evaluator `{module_path}` has no function `{callable_name}`.")
        _require_keywords(function, f"`{callable_name}` of the evaluator `{module_path}`")
        return function

    def _module(self, module_path: str) -> ModuleType:
        path = Path(module_path)
        try:
            status = path.stat() if path.is_file() else None
        except (OSError, ValueError):
            status = None
        if status is None:
            return _imported(module_path)
        key = (str(path.resolve()), status.st_mtime_ns, status.st_size)
        if key not in self._modules:
            self._modules[key] = _executed(path, key)
        return self._modules[key]


def _imported(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise RecipeError(f"There is no evaluator `{name}`: no such file, and no name of a Python module.")
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not f"{name}.".startswith(f"{problem.name}."):
            raise
        raise RecipeError(
            f"There is no evaluator `{name}`: no such file, and Python finds no such module. Give its full path."
        ) from None


def _executed(path: Path, key: tuple[str, int, int]) -> ModuleType:
    # Not through Python's own loader, whose stored bytecode knows a file's age to the second only.
    module = ModuleType(f"lora_alloy_evaluator_{sha256(repr(key).encode()).hexdigest()[:16]}")
    module.__file__ = str(path.resolve())
    code = compile(path.read_bytes(), module.__file__, "exec", dont_inherit=True)
    sys.modules[module.__name__] = module  # dataclasses and pickle look a class's module up there
    try:
        exec(code, module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


def _require_keywords(function: Function, who: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C
        return
    try:
        signature.bind(**dict.fromkeys(KEYWORDS))
    except TypeError as problem:
        wanted = ", ".join(KEYWORDS)
        raise RecipeError(f"{who} must take the keywords {wanted}, or `**keywords`: {problem}.") from None


class PythonEvaluator:
    """Asks a user's function about every candidate, within this process.

    Args:
        asked: how its score counts, and its context.
        function: from `Functions`.
        arguments: what the host hands over.
        stops: exceptions by which the host says that the user cancelled.
    """

    def __init__(
        self,
        asked: Asked,
        function: Function,
        arguments: Arguments,
        stops: tuple[type[BaseException], ...] = (),
    ) -> None:
        self.asked, self._function = asked, function
        self._arguments, self._stops = arguments, stops

    def __call__(self, trial: Trial) -> Verdict:
        """The function's verdict; what it raises is in the details."""
        with self._arguments(trial) as known:
            answer = called(self._function, {**known, "context": self.asked.context}, self._stops)
        if answer.score is None and isinstance(answer.details, Mapping) and "error" in answer.details:
            log.warning(
                "the evaluator gave no score for %s: %s", trial.candidate.name, answer.details["error"]
            )
        return answer.verdict(trial.candidate.score, self.asked.combine_mode, self.asked.weight)


def called(
    function: Function, keywords: Mapping[str, Any], stops: tuple[type[BaseException], ...] = ()
) -> Answer:
    """What a user's function answers; an exception is an answer without a score, but for `stops`."""
    plain = {name: deepcopy(keywords[name]) for name in ("config", "context", "analysis_summary")}
    try:
        return answer_of(function(**{**keywords, **plain}))
    except stops:
        raise
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - it is the user's own code
        return failure(_told(problem))


def _told(problem: BaseException) -> str:
    """An exception in words, with the line of the user's file that led to it."""
    text = f"{type(problem).__name__}: {problem}".rstrip(": ")
    if isinstance(problem, SyntaxError):
        return text
    place = _place(problem.__traceback__)
    return f"{text} ({place})" if place else text


def _place(trace: TracebackType | None) -> str:
    ours = str(Path(__file__).resolve().parent)
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith((ours, "<"))]
    if not frames:
        return ""
    last = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
