"""Blocks: the stretches of a model that reports sum over."""

import re
from itertools import pairwise

from ..lora.target import TEXT_ENCODERS, Target

_NUMBER = re.compile(r"\d+", re.ASCII)


def block_of(target: Target) -> str:
    """The block a target lies in: `input_blocks.4`, `double_blocks.7`, `clip_l.layers.3`."""
    path = target.weight.removeprefix("diffusion_model.")
    encoder = ""
    if path.startswith(TEXT_ENCODERS):
        encoder, _, path = path.removeprefix(TEXT_ENCODERS).partition(".")
        path = path.removeprefix("transformer.").removeprefix("text_model.").removeprefix("encoder.")
        encoder += "."
    return encoder + (_numbered(path) or path.split(".")[0])


def _numbered(path: str) -> str:
    """The path down to the first number behind a plain word; "" if it has none."""
    # Step by step: a pattern for the words in between would try their every division on a hostile name.
    steps = re.split(r"[._]", path)
    end = len(steps[0])
    for word, step in pairwise(steps):
        number = _NUMBER.match(step)
        if number and (word.isalpha() or not word) and end:
            return f"{path[:end]}.{number[0]}"
        end += 1 + len(step)
    return ""
