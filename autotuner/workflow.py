"""A workflow that scores one LoRA: ComfyUI's API form, with `{lora}` where the candidate's file name goes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import FileError, RecipeError
from .answers import Answer, answer_in, answer_of

PLACE = "{lora}"
TITLE = "score"


@dataclass(frozen=True)
class Workflow:
    """A workflow with the node that shows the score.

    Attributes:
        nodes: by id, each with `class_type` and `inputs`.
        score_node: the id of the node that shows the score.
    """

    nodes: Mapping[str, Any]
    score_node: str

    @staticmethod
    def read(path: Path, score_node: str = "") -> "Workflow":
        """From a file that ComfyUI's "Export (API)" wrote.

        Args:
            path: the file.
            score_node: the id or the title of the node that shows the score; the title `score` if empty.

        Raises:
            FileError: the file cannot be read.
            RecipeError: it is no such workflow, names the LoRA nowhere, or has no such node.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise FileError(f"`{path}` cannot be read ({problem.strerror}).") from None
        except (ValueError, RecursionError):
            raise FileError(f"`{path}` is no JSON, so it is no workflow.") from None
        return Workflow.of(found, score_node, f"`{path}`")

    @staticmethod
    def of(found: object, score_node: str = "", where: str = "The workflow") -> "Workflow":
        """From its JSON.

        Raises:
            RecipeError: it is no such workflow, names the LoRA nowhere, or has no such node.
        """
        if isinstance(found, Mapping) and isinstance(found.get("nodes"), list):
            raise RecipeError(f"{where} is saved for ComfyUI's editor; save it with `Export (API)`.")
        if not isinstance(found, Mapping) or not found or not all(map(_is_node, found.values())):
            raise RecipeError(f"{where} is no workflow in ComfyUI's API form; save it with `Export (API)`.")
        if not any(PLACE in text for text in _texts(found)):
            raise RecipeError(f"{where} names no LoRA: write `{PLACE}` as the file name where it loads one.")
        wanted = score_node or TITLE
        fit = (
            [wanted] if wanted in found else [name for name in found if _title(found[name]) == wanted.lower()]
        )
        if len(fit) != 1:
            count = "no node" if not fit else f"{len(fit)} nodes"
            raise RecipeError(
                f"{where} has {count} `{wanted}`; give the node that shows the score (such as Preview as Text) that"
                " title, or name its id."
            )
        return Workflow(found, fit[0])

    def prompt(self, lora: str) -> dict[str, Any]:
        """The workflow for one LoRA, by its name in ComfyUI's menus."""
        return _filled(self.nodes, lora)

    def answer(self, outputs: Mapping[str, Any]) -> Answer | None:
        """The score that its node showed; None if it showed nothing that could be one."""
        shown = outputs.get(self.score_node)
        if not isinstance(shown, Mapping):
            return None
        for values in shown.values():
            for value in values if isinstance(values, list) else [values]:
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if isinstance(value, str):
                    answer = answer_in(value)
                elif is_number:
                    answer = answer_of(value)
                else:
                    continue
                if answer.score is not None:
                    return answer
        return None


def _is_node(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("class_type"), str)


def _title(node: Mapping[str, Any]) -> str:
    meta = node.get("_meta")
    return str(meta.get("title", "")).strip().lower() if isinstance(meta, Mapping) else ""


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _filled(value: Any, lora: str) -> Any:
    if isinstance(value, str):
        return value.replace(PLACE, lora)
    if isinstance(value, Mapping):
        return {name: _filled(one, lora) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, lora) for one in value]
    return value
