"""HiDream-I1: diffusers' names are the native ones; four text encoders, the last a Llama."""

from .names import Family
from .text import CLIP_G, CLIP_L, T5, Encoder
from .transformer import Transformer

ARCHITECTURE = Transformer(
    Family("hidream", "HiDream-I1", "hidream_i1", "hidream-i1/lora"),
    width=2560,
    encoders=(
        Encoder(CLIP_L, ("lora_te1_", "lora_te_")),
        Encoder(CLIP_G, ("lora_te2_",), "text_encoder_2"),
        Encoder(T5, ("lora_te3_",), "text_encoder_3"),
        Encoder("llama", ("lora_te4_",), "text_encoder_4"),
    ),
).architecture()
