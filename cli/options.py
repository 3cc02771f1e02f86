"""Flags: those that every command has, those that are read off a recipe, and the entries of a stack."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ..api import open_base, parse_entry
from ..core.errors import AlloyError, FileError, RecipeError, SaveError, StackError
from ..core.params import Param, explained, settable
from ..core.wholefile import refuse_place
from ..lora.entries import CONFLICT_MODES, KEY_FILTERS
from ..lora.stack import Entry, Model
from ..merging.losses import MOST
from ..merging.methods import METHODS
from ..merging.plan import Plan
from ..merging.presets import PRESETS
from ..merging.recipe import AUTO, Recipe

JSON_LIMIT = 200_000_000
# What a flag takes beside its numbers, and the number that it stands for.
_WORDS = {"rank": {"auto": 0}}


class UsageError(AlloyError):
    """The words of a command line do not make a command."""


class Parser(argparse.ArgumentParser):
    """Argparse, but a mistake is one sentence like any other and ends with code 1."""

    def error(self, message: str) -> NoReturn:
        """Raise the mistake.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message[:1].upper()}{message[1:]}. `{self.prog} --help` shows what it takes.")


_EXAMPLES = {"--conflict-mode": "low_conflict", "--key-filter": "shared_only"}


def add_common(parser: argparse.ArgumentParser) -> None:
    """The flags that every command has."""
    parser.add_argument(
        "--json",
        metavar="PATH",
        help="write the result as JSON; `-` for stdout, which then holds nothing else",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="write no results, only problems")
    parser.add_argument("--force", action="store_true", help="replace files that exist")


def add_entries(parser: argparse.ArgumentParser, count: str = "+") -> None:
    """The entries of a stack."""
    parser.add_argument(
        "entries",
        nargs=count,
        metavar="ENTRY",
        help="a LoRA with its strengths, FILE[:STRENGTH[:CLIP]], such as ink.safetensors:0.8",
    )


def read_entries(
    texts: Sequence[str],
    preserved: Sequence[int] = (),
    conflict_modes: Sequence[str] = (),
    key_filters: Sequence[str] = (),
) -> list[Entry]:
    """Open the entries of a stack.

    Args:
        texts: as given on the command line.
        preserved: places of the entries to preserve, counted from 1.
        conflict_modes: `N:MODE` for the N-th entry.
        key_filters: `N:FILTER` for the N-th entry.

    Raises:
        FileError: a file cannot be read.
        StackError: a strength is not a number, or a place is not in the stack.
    """
    for place in preserved:
        _refuse_place(f"--preserve {place}", place, len(texts))
    modes = dict(_placed("--conflict-mode", text, len(texts)) for text in conflict_modes)
    filters = dict(_placed("--key-filter", text, len(texts)) for text in key_filters)
    return [
        replace(
            parse_entry(text),
            preserve=place in preserved,
            conflict_mode=modes.get(place, "all"),
            key_filter=filters.get(place, "all"),
        )
        for place, text in enumerate(texts, 1)
    ]


def _placed(flag: str, text: str, count: int) -> tuple[int, str]:
    number, _, word = text.partition(":")
    if not number.strip().isdecimal() or not word:
        raise StackError(f"`{flag} {text}` is not N:WORD, as in `{flag} 2:{_EXAMPLES[flag]}`.")
    place = int(number[:9])
    _refuse_place(f"{flag} {text}", place, count)
    return place, word.strip().replace("-", "_")


def _refuse_place(flag: str, place: int, count: int) -> None:
    if not 1 <= place <= count:
        raise StackError(
            f"`{flag}` names no entry: there are {count}, counted from 1 in the order they are given."
        )


def add_acting(parser: argparse.ArgumentParser) -> None:
    """The flags that say where an entry acts."""
    for flag, what, words in (
        ("--conflict-mode", "where the N-th entry acts", CONFLICT_MODES),
        ("--key-filter", "on which targets the N-th entry acts", KEY_FILTERS),
    ):
        parser.add_argument(
            flag,
            metavar=f"N:{'MODE' if 'mode' in flag else 'FILTER'}",
            action="append",
            default=[],
            help=f"{what}: {', '.join(words)}; may be given again",
        )


def add_max_loss(parser: argparse.ArgumentParser) -> None:
    """The flag that lets a file be written though much of the merge is gone."""
    parser.add_argument(
        "--max-loss",
        metavar="X",
        type=float,
        default=MOST,
        help="write no file if rounding or KnOTS' rank limit took more than this share of the result (default:"
        f" {MOST})",
    )


def add_preserve(parser: argparse.ArgumentParser) -> None:
    """The flag that keeps entries out of the blend."""
    parser.add_argument(
        "--preserve",
        metavar="N",
        type=int,
        action="append",
        default=[],
        help="keep the N-th entry out of the blend and add it on top, exactly; may be given again",
    )


def add_base(parser: argparse.ArgumentParser) -> None:
    """The flag that names the base model."""
    parser.add_argument(
        "--base",
        metavar="MODEL",
        type=Path,
        help="the model the LoRAs are for, a checkpoint or a folder of diffusers: DoRA, OFT, GLoRA and others"
        " depend on its weights",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    """The flag that says where the heavy work is done."""
    parser.add_argument(
        "--device",
        metavar="DEVICE",
        default="cpu",
        help="where element-wise work is done, such as cuda, cuda:1 or mps; what does not fit there is done on the CPU"
        " (default: cpu)",
    )


def read_base(options: argparse.Namespace) -> Model | None:
    """The base model that `--base` names, by its header.

    Raises:
        FileError: it cannot be read, or is no model.
    """
    return open_base(options.base) if options.base else None


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """A recipe by file, by preset, or by one flag a field; what is absent keeps its default."""
    group = parser.add_argument_group("recipe", "what to do; a flag outdoes the file or the preset")
    group.add_argument("--recipe", metavar="FILE", type=Path, help="a recipe as JSON")
    group.add_argument("--preset", choices=tuple(PRESETS), help="a recipe with a name")
    texts = explained(Recipe)
    for name, param in settable(Recipe).items():
        _add_flag(group, param, texts[name])


def _add_flag(group: argparse._ArgumentGroup, param: Param, text: str) -> None:
    flag = f"--{param.name.replace('_', '-')}"
    text = text.rstrip(".").replace("%", "%%")
    if param.kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        return
    choices = param.choice.words if param.choice else None
    metavar = {int: "N", float: "X", str: None}[param.kind]
    if param.name == "method":
        metavar = "|".join((AUTO, *METHODS))
    if words := _WORDS.get(param.name):
        metavar = "|".join((*words, metavar or "X"))
    group.add_argument(
        flag,
        type=_reader(param),
        choices=choices,
        metavar=None if choices else metavar,
        default=argparse.SUPPRESS,
        help=text,
    )


def _reader(param: Param) -> Any:
    words = _WORDS.get(param.name, {})

    def read(text: str) -> object:
        if text in words:
            return words[text]
        try:
            return param.kind(text)
        except ValueError:
            kind = {int: "a whole number", float: "a number"}[param.kind]
            also = "".join(f" or `{word}`" for word in words)
            raise argparse.ArgumentTypeError(f"`{text}` is not {kind}{also}") from None

    return read


def chosen_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe that the flags describe.

    Raises:
        RecipeError: it asks for something unknown or contradictory.
        FileError: its file cannot be read.
    """
    given = {name: getattr(options, name) for name in settable(Recipe) if hasattr(options, name)}
    if options.recipe and options.preset:
        raise RecipeError("`--recipe` and `--preset` both say what to do; give one of them.")
    base = Recipe()
    if options.preset:
        base = PRESETS[options.preset]
    elif options.recipe:
        base = read_recipe(options.recipe)
    return replace(base, **given)


def read_plan(path: Path) -> Plan:
    """The plan in a JSON file, or in a result of `merge` that holds one.

    Raises:
        FileError: the file cannot be read.
        RecipeError: it is not a plan.
    """
    given = read_json(path)
    try:
        return Plan.from_json(given["plan"] if isinstance(given.get("plan"), dict) else given)
    except RecipeError as problem:
        raise RecipeError(f"`{path}` cannot be used: {problem}") from None


def read_recipe(path: Path) -> Recipe:
    """The recipe in a JSON file.

    Raises:
        FileError: the file cannot be read.
        RecipeError: it is not a recipe.
    """
    return Recipe.parse(read_text(path), f"`{path}`")


def read_text(path: Path) -> str:
    """A text file of sensible size.

    Raises:
        FileError: it cannot be read, or is no text.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(JSON_LIMIT + 1)
        if len(raw) > JSON_LIMIT:
            raise FileError(f"`{path}` is too large to be a recipe or a plan; name another file.")
        return raw.decode("utf-8-sig")
    except OSError as problem:
        raise FileError(f"`{path}` cannot be read ({problem.strerror}); check its name.") from None
    except UnicodeDecodeError:
        raise FileError(f"`{path}` is not a text file in UTF-8; name another file.") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        FileError: the file cannot be read, or holds no JSON object.
    """
    try:
        given = json.loads(read_text(path))
    except (ValueError, RecursionError) as problem:
        raise FileError(f"`{path}` is not JSON: {str(problem)[:200]}.") from None
    if not isinstance(given, dict):
        raise FileError(f"`{path}` holds no JSON object.")
    return given


def refuse_outputs(
    outputs: Sequence[Path], inputs: Sequence[Path], *, is_forced: bool, replaceable: Path | None = None
) -> None:
    """Find out before any work is done that an output has no place, or would destroy something.

    Args:
        outputs: files that will be written.
        inputs: files that are read.
        is_forced: whether files that exist may be replaced.
        replaceable: the one output that may even replace an input, if that is forced.

    Raises:
        SaveError: it does; nothing was touched.
    """
    for place, output in enumerate(outputs):
        refuse_place(output)
        if any(output.resolve() == other.resolve() for other in outputs[:place]):
            raise SaveError(f"`{output}` is named for two outputs; give each its own name.")
        if not output.exists():
            continue
        is_input = any(given.exists() and output.samefile(given) for given in inputs)
        if is_input and not (is_forced and output == replaceable):
            hint = ", or add `--force` to replace it" if output == replaceable else ""
            raise SaveError(f"`{output}` is one of the files to read; name another one{hint}.")
        if not is_forced:
            raise SaveError(f"`{output}` exists already; name another file, or add `--force` to replace it.")
