"""Stable Cascade's stage C, the prior: a UNet whose steps are numbered in one row per level."""

from .names import Family
from .text import CLIP_G, Encoder
from .transformer import Transformer

ARCHITECTURE = Transformer(
    Family("cascade", "Stable Cascade", "stable_cascade", "stable-cascade-v1-prior/lora"),
    width=2048,
    renames=(
        ("attention.attn.out_proj", "attention.to_out.0"),
        ("attention.attn", "attention"),
        ("down_downscalers.1.1.blocks.0", "down_downscalers.1.1"),
        ("up_upscalers.0.1.blocks.1", "up_upscalers.0.1"),
    ),
    encoders=(Encoder(CLIP_G, ("lora_prior_te_", "lora_te_", "lora_te1_", "lora_te2_")),),
).architecture()
