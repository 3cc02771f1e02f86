"""A diffusion transformer small enough to judge a merge in a fraction of a second: pixels, rectified flow.

Its modules are named as diffusers names those of large ones, so that LoRAs for it are files like any other.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from images import CLASS_WORDS, SIZE, STYLE_WORDS
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

PATCH, WIDTH, HEADS, DEPTH = 4, 96, 4, 4
ATTENTION, FEED_FORWARD, MODULATION = "attn", "ff", "norm1"
EVERYTHING = (ATTENTION, FEED_FORWARD, MODULATION)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (
            project(tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for project in (self.to_q, self.to_k, self.to_v)
        )
        return self.to_out(
            functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        )


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj_in, self.proj_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.proj_out(functional.gelu(self.proj_in(tokens)))


class Modulation(nn.Module):
    """Scales, shifts and gates from what the prompt and the time say."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, count * WIDTH)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, condition: Tensor, count: int) -> Sequence[Tensor]:
        return self.linear(functional.silu(condition))[:, None].chunk(count, -1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.ff = Modulation(6), Attention(), FeedForward()

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        scale, shift, gate, ff_scale, ff_shift, ff_gate = self.norm1(condition, 6)
        tokens = tokens + gate * self.attn(functional.layer_norm(tokens, (WIDTH,)) * (1 + scale) + shift)
        return tokens + ff_gate * self.ff(functional.layer_norm(tokens, (WIDTH,)) * (1 + ff_scale) + ff_shift)


class TinyDiT(nn.Module):
    """The velocity of noisy images, given a time in [0, 1], class words and style words."""

    def __init__(self) -> None:
        super().__init__()
        patches, values = (SIZE // PATCH) ** 2, 3 * PATCH * PATCH
        self.x_embedder = nn.Linear(values, WIDTH)
        self.pos_embed = nn.Parameter(torch.randn(patches + 2, WIDTH) * 0.1)
        self.class_embed = nn.Embedding(CLASS_WORDS, WIDTH)
        self.style_embed = nn.Embedding(STYLE_WORDS, WIDTH)
        self.t1, self.t2 = nn.Linear(32, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.transformer_blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm_out, self.proj_out = Modulation(2), nn.Linear(WIDTH, values)

    def forward(self, noisy: Tensor, time: Tensor, words: Tensor, styles: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(16) * (-math.log(100.0) / 16)) * time[:, None] * 20
        word, style = self.class_embed(words), self.style_embed(styles)
        moment = self.t2(functional.silu(self.t1(torch.cat([frequencies.sin(), frequencies.cos()], -1))))
        condition = moment + 0.5 * (word + style)
        patches = self.x_embedder(functional.pixel_unshuffle(noisy, PATCH).flatten(2).transpose(1, 2))
        tokens = torch.cat([word[:, None], style[:, None], patches], 1) + self.pos_embed
        for block in self.transformer_blocks:
            tokens = block(tokens, condition)
        scale, shift = self.norm_out(condition, 2)
        values = self.proj_out(functional.layer_norm(tokens, (WIDTH,)) * (1 + scale) + shift)[:, 2:]
        grid = values.transpose(1, 2).unflatten(2, (SIZE // PATCH, SIZE // PATCH))
        return functional.pixel_shuffle(grid, PATCH)


def flow_loss(
    model: TinyDiT, images: Tensor, noise: Tensor, time: Tensor, words: Tensor, styles: Tensor
) -> Tensor:
    """The squared error of the velocity on the straight path from image to noise: `(n,)`."""
    share = time[:, None, None, None]
    velocity = model((1 - share) * images + share * noise, time, words, styles)
    return (velocity - (noise - images)).pow(2).mean((1, 2, 3))


@torch.no_grad()
def generate(model: TinyDiT, noise: Tensor, words: Tensor, styles: Tensor, steps: int = 8) -> Tensor:
    """Images from noise, by Euler's method."""
    images, times = noise.clone(), torch.linspace(1, 0, steps + 1)
    for time, after in zip(times[:-1], times[1:], strict=True):
        images = images + (after - time) * model(images, time.expand(len(images)), words, styles)
    return images


def targets(model: TinyDiT, layers: Sequence[str] = EVERYTHING) -> dict[str, nn.Linear]:
    """The linear modules of the blocks that a LoRA may change, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and "transformer_blocks" in name
        and any(f".{layer}." in name for layer in layers)
    }


def load_base(path: Path) -> TinyDiT:
    """The trained model, frozen."""
    model = TinyDiT()
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(path).items()})
    return model.eval().requires_grad_(False)
