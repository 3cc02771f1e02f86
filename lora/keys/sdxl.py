"""Stable Diffusion XL: kohya's trainer flattens LDM's names of the UNet; CLIP-L and CLIP-G read the text."""

from collections.abc import Iterator, Sequence

from .names import Architecture, Candidate, Family, Module, Names
from .text import CLIP_G, CLIP_L, clip
from .unet import UNet

FAMILY = Family("sdxl", "Stable Diffusion XL", "sdxl_base_v1-0", "stable-diffusion-xl-v1-base/lora")
UNET = UNet(
    channels=(1, 2, 4),
    depths=(0, 2, 10),
    middle_depth=10,
    cross_width=2048,
    has_conv_projection=False,
    has_label=True,
    is_kohya_ldm=True,
)


def names(family: Family) -> Iterator[Names]:
    """Every target of the family."""
    yield from UNET.names()
    yield from clip(CLIP_L, 12, kohya=("lora_te1_", "lora_te_"), diffusers="text_encoder")
    yield from clip(CLIP_G, 32, kohya=("lora_te2_",), diffusers="text_encoder_2")


def judge(modules: Sequence[Module]) -> Candidate | None:
    """Cross attention reads 2048 columns, and a linear map enters the transformers."""
    return UNET.judge(FAMILY, modules)


ARCHITECTURE = Architecture(FAMILY, names, judge, kernel=UNET.kernel)
