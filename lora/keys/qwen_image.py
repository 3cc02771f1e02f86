"""Qwen-Image and its Edit models: diffusers' names are the native ones."""

from .names import Family
from .text import Encoder
from .transformer import Transformer

ARCHITECTURE = Transformer(
    Family("qwen_image", "Qwen-Image", "qwen_image", "Qwen-Image/lora"),
    width=3072,
    encoders=(Encoder("qwen25_7b"),),
).architecture()
