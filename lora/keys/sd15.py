"""Stable Diffusion 1.x: kohya's trainer flattens diffusers' names of the UNet; CLIP-L reads the text."""

from collections.abc import Iterator, Sequence

from .names import Architecture, Candidate, Family, Module, Names
from .text import CLIP_L, clip
from .unet import UNet

FAMILY = Family("sd15", "Stable Diffusion 1.5", "sd_v1", "stable-diffusion-v1/lora")
UNET = UNet(
    channels=(1, 2, 4, 4),
    depths=(1, 1, 1, 0),
    middle_depth=1,
    cross_width=768,
    has_conv_projection=True,
    has_label=False,
    is_kohya_ldm=False,
)


def names(family: Family) -> Iterator[Names]:
    """Every target of the family."""
    yield from UNET.names()
    yield from clip(CLIP_L, 12, kohya=("lora_te_", "lora_te1_"), diffusers="text_encoder")


def judge(modules: Sequence[Module]) -> Candidate | None:
    """Cross attention reads 768 columns, and a convolution enters the transformers."""
    return UNET.judge(FAMILY, modules)


ARCHITECTURE = Architecture(FAMILY, names, judge, kernel=UNET.kernel)
