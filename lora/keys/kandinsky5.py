"""Kandinsky 5: diffusers' names are the native ones, in three widths."""

from .names import Family
from .text import CLIP_L, Encoder
from .transformer import Transformer

_TEXT = (Encoder("qwen25_7b"), Encoder(CLIP_L, ("lora_te1_", "lora_te_", "lora_te2_")))

ARCHITECTURES = tuple(
    Transformer(Family(key, title, "kandinsky5", "Kandinsky-5/lora"), width, encoders=_TEXT).architecture()
    for key, title, width in (
        ("kandinsky5_lite", "Kandinsky 5 Lite", 1792),
        ("kandinsky5_pro", "Kandinsky 5 Pro", 4096),
        ("kandinsky5_image", "Kandinsky 5 Image", 2560),
    )
)
