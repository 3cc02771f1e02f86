"""OmniGen2: diffusers' names are the native ones."""

from .names import Family
from .text import Encoder
from .transformer import Transformer

ARCHITECTURE = Transformer(
    Family("omnigen2", "OmniGen2", "omnigen2", "omnigen2/lora"),
    width=2520,
    encoders=(Encoder("qwen25_3b"),),
).architecture()
