"""A signature → what a user may set: keyword-only with a default is the user's, without is the engine's."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from .errors import RecipeError


@dataclass(frozen=True)
class Span:
    """The closed range of a number."""

    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """The allowed words of a string."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Param:
    """One parameter that a user may set: `kind` is `bool`, `int`, `float` or `str`."""

    name: str
    kind: type
    default: Any
    span: Span | None = None
    choice: Choice | None = None

    def check(self, value: object, where: str) -> Any:
        """Return `value` as this parameter's kind.

        Raises:
            RecipeError: it is of another kind, or out of range.
        """
        wanted = {float: (int, float), int: int, str: str, bool: bool}[self.kind]
        if not isinstance(value, wanted) or (isinstance(value, bool) and self.kind is not bool):
            raise RecipeError(f"`{self.name}` of {where} must be {self.kind.__name__}, not {value!r}.")
        if self.span and not self.span.low <= value <= self.span.high:  # type: ignore[operator]
            raise RecipeError(
                f"`{self.name}` of {where} is {value}; it must lie between {self.span.low:g} and"
                f" {self.span.high:g}."
            )
        if self.choice and value not in self.choice.words:
            raise RecipeError(
                f"`{self.name}` of {where} is {value!r}; known: {', '.join(self.choice.words)}."
            )
        return self.kind(value)


def settable(function: Callable[..., object]) -> dict[str, Param]:
    """The parameters of `function` that a user may set, by name, in the order of the signature."""
    hints = get_type_hints(function, include_extras=True)
    found: dict[str, Param] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
            continue
        hint = hints[parameter.name]
        extras: tuple[object, ...] = ()
        if get_origin(hint) is Annotated:
            hint, *rest = get_args(hint)
            extras = tuple(rest)
        found[parameter.name] = Param(
            parameter.name,
            hint,
            parameter.default,
            next((extra for extra in extras if isinstance(extra, Span)), None),
            next((extra for extra in extras if isinstance(extra, Choice)), None),
        )
    return found


def explained(function: Callable[..., object]) -> dict[str, str]:
    """What the docstring of `function` says of each of its settable parameters, in one line each."""
    known = settable(function)
    listed = re.split(r"\n(?:Args|Attributes):\n", inspect.getdoc(function) or "", maxsplit=1)[-1]
    found: dict[str, list[str]] = {}
    name = ""
    for line in listed.splitlines():
        start = re.match(r"\s+(\w+): (.+)", line)
        if start and start[1] in known:
            name = start[1]
            found[name] = [start[2]]
        elif line and not line.startswith(" "):
            break
        elif name:
            found[name].append(line)
    return {name: " ".join(" ".join(lines).split()) for name, lines in found.items()}


def checked(function: Callable[..., object], given: Mapping[str, object], where: str) -> dict[str, Any]:
    """`given`, checked against what `function` lets a user set, with the defaults filled in.

    Raises:
        RecipeError: an unknown name, or a value of the wrong kind or out of range.
    """
    known = settable(function)
    for name in given:
        if name not in known:
            raise RecipeError(unknown("parameter", name, known, of=where))
    return {
        name: parameter.check(given.get(name, parameter.default), where) for name, parameter in known.items()
    }


def unknown(what: str, name: str, known: Mapping[str, object], of: str = "") -> str:
    """The sentence for a name that is not in a table, with the nearest one that is."""
    near = get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    owner = f" of {of}" if of else ""
    return f"No {what}{owner} is called {name!r}.{hint} Known: {', '.join(known) or 'none'}."
