"""Anima: Cosmos Predict 2's blocks behind an adapter for its language model; diffusers does not have it."""

from .names import Family
from .text import Encoder
from .transformer import Transformer

ARCHITECTURE = Transformer(
    Family("anima", "Anima", "anima", "anima-preview/lora"),
    width=2048,
    renames=None,
    encoders=(Encoder("qwen3_06b"),),
).architecture()
