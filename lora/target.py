"""A target: one base weight that LoRAs change, by its name in the model."""

from dataclasses import dataclass

TEXT_ENCODERS = "text_encoders."


@dataclass(frozen=True)
class Part:
    """A block of a fused weight: `length` rows (`axis` 0) or columns (`axis` 1) from `start` on."""

    axis: int
    start: int
    length: int


@dataclass(frozen=True)
class Target:
    """A base weight, or a part of a fused one.

    `weight` is the module's path in ComfyUI's own naming, without `.weight`, and with its component in front:
    `diffusion_model.input_blocks.4.1.transformer_blocks.0.attn1.to_q`,
    `text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj`.
    """

    weight: str
    part: Part | None = None

    @property
    def is_clip(self) -> bool:
        """Whether a text encoder owns this target; CLIP strengths apply to it."""
        return self.weight.startswith(TEXT_ENCODERS)

    def __str__(self) -> str:
        if self.part is None:
            return self.weight
        end = self.part.start + self.part.length
        return f"{self.weight}[{':, ' * self.part.axis}{self.part.start}:{end}]"


@dataclass(frozen=True)
class Route:
    """Where a module name leads: to `target`, its two row halves exchanged on the way if `swap_halves`.

    The exchange is that of scale and shift in the final modulation of diffusers' Flux.
    """

    target: Target
    swap_halves: bool = False
