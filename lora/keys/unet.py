"""The UNets of Stable Diffusion: LDM's names of their modules and diffusers', from the same structural rules.

LDM numbers the steps of each half in one row, `input_blocks.0…` and `output_blocks.0…`; diffusers numbers
levels, and the steps within one, `down_blocks.1.resnets.0`. A level is two residual steps (three on the way
up), each followed by a transformer where the level has them, and a change of resolution.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..target import Target
from .names import MODEL, Candidate, Family, Module, Names, flat
from .text import fits

CROSS_WIDTHS = (768, 1024, 1280, 2048)  # SD 1, SD 2, the SDXL refiner, SDXL

_RESIDUALS = 2
_RESNET = (
    ("in_layers.0", "norm1"),
    ("in_layers.2", "conv1"),
    ("emb_layers.1", "time_emb_proj"),
    ("out_layers.0", "norm2"),
    ("out_layers.3", "conv2"),
)
_BLOCK = (
    *(f"attn{number}.{end}" for number in (1, 2) for end in ("to_q", "to_k", "to_v", "to_out.0")),
    *("ff.net.0.proj", "ff.net.2", "norm1", "norm2", "norm3"),
)
_FRAME = (
    ("input_blocks.0.0", "conv_in"),
    ("time_embed.0", "time_embedding.linear_1"),
    ("time_embed.2", "time_embedding.linear_2"),
    ("out.0", "conv_norm_out"),
    ("out.2", "conv_out"),
)
_WIDE = re.compile(
    rf"^{re.escape(MODEL)}(?:input_blocks\.0\.0|out\.2|.+\.(?:in_layers\.2|out_layers\.3|op|\d\.conv))$"
)
_LABEL = (("label_emb.0.0", "add_embedding.linear_1"), ("label_emb.0.2", "add_embedding.linear_2"))


@dataclass(frozen=True)
class UNet:
    """The structure of a UNet, level by level from the top.

    Attributes:
        channels: the width of each level, in units of the first's.
        depths: blocks in each transformer of a level; 0 means that it has none.
        middle_depth: blocks in the transformer in the middle.
        cross_width: the width of the text that cross attention reads.
        has_conv_projection: whether transformers are entered by a convolution, not by a linear map.
        has_label: whether sizes and pooled text enter as a label.
        is_kohya_ldm: whether kohya's trainer flattens LDM's names, not diffusers'.
    """

    channels: tuple[int, ...]
    depths: tuple[int, ...]
    middle_depth: int
    cross_width: int
    has_conv_projection: bool
    has_label: bool
    is_kohya_ldm: bool

    def names(self) -> Iterator[Names]:
        """The names of every module that has a weight."""
        for ldm, diffusers in self.modules():
            weight = MODEL + ldm
            spelled = ("lora_unet_" + flat(ldm), "lora_unet_" + flat(diffusers))
            kohya, other = spelled if self.is_kohya_ldm else spelled[::-1]
            yield Names(Target(weight), weight, kohya, "unet." + diffusers, (other,))

    def modules(self) -> Iterator[tuple[str, str]]:
        """Every module as LDM and as diffusers call it."""
        yield from _FRAME
        if self.has_label:
            yield from _LABEL
        yield from self._down()
        yield from _resnet("middle_block.0", "mid_block.resnets.0", is_widened=False)
        yield from _transformer("middle_block.1", "mid_block.attentions.0", self.middle_depth)
        yield from _resnet("middle_block.2", "mid_block.resnets.1", is_widened=False)
        yield from self._up()

    def judge(self, family: Family, modules: Sequence[Module]) -> Candidate | None:
        """Whether the shapes of `modules` let them be of this UNet and of the family's text encoders.

        A width that belongs to another family rules this one out; one that no family has (a toy model's)
        says nothing. Where no cross attention is to be seen, the kind of the projections makes it likely.
        """
        crossing = [m.inputs for m in modules if m.target.weight.endswith((".attn2.to_k", ".attn2.to_v"))]
        if not fits(modules) or any(w != self.cross_width and w in CROSS_WIDTHS for w in crossing):
            return None
        projections = [m for m in modules if m.target.weight.endswith((".proj_in", ".proj_out"))]
        is_alike = any((len(m.down) == 4) == self.has_conv_projection for m in projections)
        return Candidate(family, self.cross_width in crossing or (not crossing and is_alike))

    def kernel(self, weight: str) -> tuple[int, ...]:
        """The kernel of a weight, empty if it is a linear map or none of this UNet."""
        if _WIDE.search(weight):
            return 3, 3
        is_narrow = weight.endswith(".skip_connection")
        is_projection = weight.endswith((".proj_in", ".proj_out")) and weight.startswith(MODEL)
        return (1, 1) if is_narrow or (is_projection and self.has_conv_projection) else ()

    def _down(self) -> Iterator[tuple[str, str]]:
        step = 1
        for level, depth in enumerate(self.depths):
            there = f"down_blocks.{level}"
            for residual in range(_RESIDUALS):
                is_widened = residual == 0 < level and self.channels[level] != self.channels[level - 1]
                yield from _resnet(
                    f"input_blocks.{step}.0", f"{there}.resnets.{residual}", is_widened=is_widened
                )
                yield from _transformer(f"input_blocks.{step}.1", f"{there}.attentions.{residual}", depth)
                step += 1
            if level + 1 < len(self.depths):
                yield f"input_blocks.{step}.0.op", f"{there}.downsamplers.0.conv"
                step += 1

    def _up(self) -> Iterator[tuple[str, str]]:
        step = 0
        for level, depth in enumerate(reversed(self.depths)):
            there = f"up_blocks.{level}"
            for residual in range(_RESIDUALS + 1):
                # Widened always: each step also takes in what the way down left at its height.
                yield from _resnet(f"output_blocks.{step}.0", f"{there}.resnets.{residual}", is_widened=True)
                yield from _transformer(f"output_blocks.{step}.1", f"{there}.attentions.{residual}", depth)
                step += 1
            if level + 1 < len(self.depths):
                place = 2 if depth else 1
                yield f"output_blocks.{step - 1}.{place}.conv", f"{there}.upsamplers.0.conv"


def _resnet(ldm: str, diffusers: str, *, is_widened: bool) -> Iterator[tuple[str, str]]:
    for here, there in _RESNET:
        yield f"{ldm}.{here}", f"{diffusers}.{there}"
    if is_widened:
        yield f"{ldm}.skip_connection", f"{diffusers}.conv_shortcut"


def _transformer(ldm: str, diffusers: str, depth: int) -> Iterator[tuple[str, str]]:
    if not depth:
        return
    for name in ("norm", "proj_in", "proj_out"):
        yield f"{ldm}.{name}", f"{diffusers}.{name}"
    for block in range(depth):
        for name in _BLOCK:
            path = f"transformer_blocks.{block}.{name}"
            yield f"{ldm}.{path}", f"{diffusers}.{path}"
