"""The names and shapes of the released models' weights, as ComfyUI builds them; from lists, without ComfyUI.

shapes_of("flux")["double_blocks.0.img_attn.qkv"]    # (9216, 3072)

A text encoder is listed under its own name: `shapes_of("clip_l")["clip_l.transformer.text_projection"]`.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_HERE = Path(__file__).with_name("released")
_OURS = Path(__file__).parents[3] / "lora/keys/data"
_RANGE = re.compile(r"\{(\d+)-(\d+)\}")

Shape = tuple[int, ...]


@lru_cache(maxsize=128)
def shapes_of(name: str) -> dict[str, Shape]:
    """By path, the shape of every `.weight` of a family's model, or of a text encoder."""
    path = _HERE / f"{name}.txt"
    text = (path if path.exists() else _OURS / f"{name}.txt").read_text(encoding="utf-8")
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {one: tuple(map(int, sizes)) for path, *sizes in lines for one in _written_out(path)}


def _written_out(path: str) -> Iterator[str]:
    found = _RANGE.search(path)
    if found is None:
        yield path
        return
    for index in range(int(found[1]), int(found[2]) + 1):
        yield from _written_out(f"{path[: found.start()]}{index}{path[found.end() :]}")
