"""Blocks: the stretches of a model that reports sum over."""

import re

from ..lora.target import TEXT_ENCODERS, Target

_BLOCK = re.compile(r"^(?P<run>(?:[A-Za-z_]\w*[._])*?[A-Za-z_]+)[._](?P<number>\d+)")


def block_of(target: Target) -> str:
    """The block a target lies in: `input_blocks.4`, `double_blocks.7`, `clip_l.layers.3`."""
    path = target.weight.removeprefix("diffusion_model.")
    encoder = ""
    if path.startswith(TEXT_ENCODERS):
        encoder, _, path = path.removeprefix(TEXT_ENCODERS).partition(".")
        path = path.removeprefix("transformer.").removeprefix("text_model.").removeprefix("encoder.")
        encoder += "."
    found = _BLOCK.match(path)
    if found:
        return f"{encoder}{found['run']}.{found['number']}"
    return encoder + path.split(".")[0]
