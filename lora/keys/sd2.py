"""Stable Diffusion 2.x: the names of 1.x on another model, so that only shapes tell them apart."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from . import sd15
from .names import Architecture, Candidate, Family, Module, Names
from .text import CLIP_H, clip

FAMILY = Family("sd2", "Stable Diffusion 2", "sd_v2", "stable-diffusion-v2-512/lora")
UNET = replace(sd15.UNET, cross_width=1024, has_conv_projection=False)


def names(family: Family) -> Iterator[Names]:
    """Every target of the family."""
    yield from UNET.names()
    yield from clip(CLIP_H, 24, kohya=("lora_te_", "lora_te1_"), diffusers="text_encoder")


def judge(modules: Sequence[Module]) -> Candidate | None:
    """Cross attention reads 1024 columns, and a linear map enters the transformers."""
    return UNET.judge(FAMILY, modules)


ARCHITECTURE = Architecture(FAMILY, names, judge, kernel=UNET.kernel)
