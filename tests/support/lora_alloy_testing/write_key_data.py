"""A script: write `lora/keys/data`, the names and shapes of each family's modules, from ComfyUI's own models.

Run as `python -m lora_alloy_testing.write_key_data TREE FOLDER` with `TREE` a ComfyUI checkout. One line is a
module, or a row of them that differ by an index: `blocks.{0-39}.ffn.0 13824 5120`. A file is a family, or a text
encoder that several families read. With `by-hand` behind, it writes those whose names follow from rules in our code
instead: `released`, beside this file, from which the tests know their sizes.
"""

import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch

BY_HAND = {
    "sd15",
    "sd2",
    "sdxl",
    "flux",
    "clip_l",
    "clip_h",
    "clip_g",
    "t5xxl",
}  # their names follow from rules in code

_HEAD = "# Modules of ComfyUI's model and the shapes of their weights; written by a script, not by hand.\n"
_STEP = re.compile(r"(?<=\.)(?:\d+|\{\d+-\d+\})(?=\.|$)")


def lines(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names with their shapes, those that differ by consecutive indices as one line; in the model's order."""
    rows = dict.fromkeys((name, tuple(shape)) for name, shape in shapes.items())
    for place in range(max((len(_STEP.findall(name)) for name in shapes), default=0)):
        rows = dict.fromkeys(_joined(rows, place))
    return [" ".join([name, *map(str, shape)]) for name, shape in rows]


def _joined(rows: Iterable[tuple[str, tuple[int, ...]]], place: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    groups: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for name, shape in rows:
        found = [*_STEP.finditer(name)][place : place + 1]
        if not found or not found[0].group().isdigit():
            groups.setdefault((name, "", shape), [])
        else:
            key = name[: found[0].start()], name[found[0].end() :], shape
            groups.setdefault(key, []).append(int(found[0].group()))
    for (head, tail, shape), indices in groups.items():
        if not indices:
            yield head, shape
            continue
        for first, last in _runs(sorted(indices)):
            yield f"{head}{first if first == last else f'{{{first}-{last}}}'}{tail}", shape


def _runs(indices: list[int]) -> Iterator[tuple[int, int]]:
    first = last = indices[0]
    for index in indices[1:]:
        if index != last + 1:
            yield first, last
            first = index
        last = index
    yield first, last


def files(by_hand: bool = False) -> dict[str, str]:
    """By file name, what ComfyUI's models give for it; `by_hand` takes those that need no list instead."""
    models = importlib.import_module(".comfy_models", __package__)
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for family in BY_HAND.intersection(models.BUILDS) if by_hand else models.BUILDS:
        for made in models.built(family):
            if (family in BY_HAND) is by_hand:
                _add(found.setdefault(family, {}), made.model.state_dict(), "diffusion_model.")
            if made.encoders is not None:
                state = made.encoders.state_dict()
                for child in dict.fromkeys(key.partition(".")[0] for key in state):
                    own = {key: value for key, value in state.items() if key.partition(".")[0] == child}
                    if (child in BY_HAND) is by_hand and child not in found:
                        _add(found.setdefault(child, {}), own, "")
    return {
        f"{name}.txt": _HEAD + "\n".join(lines(shapes)) + "\n" for name, shapes in found.items() if shapes
    }


def _add(shapes: dict[str, tuple[int, ...]], state: Mapping[str, torch.Tensor], prefix: str) -> None:
    for key, value in state.items():
        if key.endswith(".weight") and key.startswith(prefix):
            shapes.setdefault(key.removeprefix(prefix).removesuffix(".weight"), tuple(value.shape))


def main(tree: Path, folder: Path, by_hand: bool) -> None:
    """Import ComfyUI from `tree` and write every file into `folder`."""
    sys.path.insert(0, str(tree))
    sys.argv = ["main.py", "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    folder.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode():
        for name, text in files(by_hand).items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] == ["by-hand"])
