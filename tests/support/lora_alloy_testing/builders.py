"""Factors, files and stacks for the engine's tests, with the deltas they must give in float64.

ink = noise((24, 16), rank=4, seed=1, alpha=2.0)
path = write_lora(folder / "ink.safetensors", {"lora_unet_…_to_q": ink}, spelling="kohya")
ink.delta    # (24, 16), float64, as the textbook computes it
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from lora_alloy.api import merge
from lora_alloy.lora.factors import LowRank
from lora_alloy.lora.file import LoraFile, lora_in_memory, open_lora
from lora_alloy.lora.stack import Entry, Stack, build_stack
from lora_alloy.merging.patch import Patch
from lora_alloy.merging.recipe import Recipe

# The endings of the up and the down factor, by who writes them so.
SPELLINGS: dict[str, tuple[str, str]] = {
    "kohya": (".lora_up.weight", ".lora_down.weight"),
    "peft": (".lora_B.weight", ".lora_A.weight"),
    "peft, bare": (".lora_B", ".lora_A"),
    "peft, raw": (".lora_B.default.weight", ".lora_A.default.weight"),
    "diffusers, layers": (".lora.up.weight", ".lora.down.weight"),
    "diffusers, processors": ("_lora.up.weight", "_lora.down.weight"),
    "diffusers, text": (".lora_linear_layer.up.weight", ".lora_linear_layer.down.weight"),
}

# Four targets of SD 1.5 with toy sizes: kohya's name → (the target, its shape).
TOY: dict[str, tuple[str, tuple[int, ...]]] = {
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q": (
        "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q",
        (24, 16),
    ),
    "lora_unet_down_blocks_0_resnets_0_conv1": (
        "diffusion_model.input_blocks.1.0.in_layers.2",
        (12, 8, 3, 3),
    ),
    "lora_unet_mid_block_attentions_0_transformer_blocks_0_ff_net_0_proj": (
        "diffusion_model.middle_block.1.transformer_blocks.0.ff.net.0.proj",
        (40, 10),
    ),
    "lora_te_text_model_encoder_layers_3_mlp_fc1": (
        "text_encoders.clip_l.transformer.text_model.encoder.layers.3.mlp.fc1",
        (20, 12),
    ),
}


@dataclass(frozen=True)
class Factors:
    """What a file stores for one module: up `(o, r)`, down `(r, i[, kh, kw])`, perhaps a mid and an alpha."""

    up: Tensor
    down: Tensor
    alpha: float | None = None
    mid: Tensor | None = None

    @property
    def delta(self) -> np.ndarray:
        """`(o, i[, kh, kw])` in float64, multiplied out the slow way."""
        up, down = as_numpy(self.up), as_numpy(self.down)
        up = up.reshape(up.shape[0], -1)
        scale = 1.0 if self.alpha is None else self.alpha / down.shape[0]
        if self.mid is not None:
            down = np.einsum("ab...,bi->ai...", as_numpy(self.mid), down.reshape(down.shape[0], -1))
        return scale * np.einsum("or,r...->o...", up, down)

    def times(self, factor: float) -> "Factors":
        """The same module with its delta multiplied, through the up factor."""
        return replace(self, up=self.up * factor)


Modules = Mapping[str, Factors]


def as_numpy(value: Tensor) -> np.ndarray:
    """Any float tensor as float64."""
    return value.detach().double().numpy()


def noise(
    shape: Sequence[int],
    rank: int = 4,
    *,
    seed: int = 0,
    alpha: float | None = None,
    dtype: torch.dtype = torch.float32,
    size: float = 0.1,
    has_mid: bool = False,
) -> Factors:
    """Gaussian factors of a weight of `shape`; `size` is that of each factor's entries."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*sizes: int) -> Tensor:
        return (torch.randn(sizes, generator=generator) * size).to(dtype)

    outputs, inputs, *kernel = shape
    flat = (1,) * len(kernel)
    up = draw(outputs, rank, *flat)
    if has_mid:
        return Factors(up, draw(rank, inputs, *flat), alpha, draw(rank, rank, *kernel))
    return Factors(up, draw(rank, inputs, *kernel), alpha)


def toy_lora(seed: int, *, rank: int = 4, names: Iterable[str] = TOY, **how: object) -> dict[str, Factors]:
    """A LoRA of SD 1.5 on the `TOY` targets, other noise on each."""
    return {
        name: noise(TOY[name][1], rank, seed=zlib.crc32(f"{seed} {name}".encode()), **how)  # type: ignore[arg-type]
        for name in names
    }


def tensors_of(modules: Modules, spelling: str = "kohya") -> dict[str, Tensor]:
    """Modules as the named tensors of a file."""
    up_end, down_end = SPELLINGS[spelling]
    tensors: dict[str, Tensor] = {}
    for name, factors in modules.items():
        tensors[name + up_end] = factors.up.contiguous()
        tensors[name + down_end] = factors.down.contiguous()
        if factors.mid is not None:
            tensors[f"{name}.lora_mid.weight"] = factors.mid
        if factors.alpha is not None:
            tensors[f"{name}.alpha"] = torch.tensor(factors.alpha)
    return tensors


def write_lora(
    path: Path, modules: Modules, spelling: str = "kohya", metadata: Mapping[str, str] | None = None
) -> Path:
    """Write a LoRA file with safetensors' own library."""
    save_file(tensors_of(modules, spelling), path, dict(metadata or {}))
    return path


def file_of(modules: Modules, label: str = "ink", spelling: str = "kohya") -> LoraFile:
    """A LoRA that lies in memory only."""
    return lora_in_memory(label, tensors_of(modules, spelling), {})


def stack_of(*entries: Entry | Modules) -> Stack:
    """A stack of LoRAs in memory; bare modules come at strength 1."""
    return build_stack([one if isinstance(one, Entry) else Entry(file_of(one)) for one in entries])


def entry_of(path: Path, strength: float = 1.0, clip: float | None = None, preserve: bool = False) -> Entry:
    """A stack entry of a file on disk."""
    return Entry(open_lora(path), strength, clip, preserve)


def _multiplied(patch: Patch) -> np.ndarray:
    if isinstance(patch.delta, LowRank):
        return as_numpy(patch.up) @ as_numpy(patch.down)
    return as_numpy(patch.delta.flat())


def dense(patches: Iterable[Patch]) -> dict[str, np.ndarray]:
    """What patches add, by target, multiplied out in float64; parts of fused weights under their own name."""
    return {str(patch.target): _multiplied(patch).reshape(patch.shape) for patch in patches}


def merged(entries: Sequence[Entry], recipe: Recipe | None = None) -> dict[str, np.ndarray]:
    """What a merge adds, by target."""
    return dense(merge(list(entries), recipe))


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """`‖found − expected‖ / ‖expected‖`, the plain norm of the first where the second is zero."""
    off = float(np.linalg.norm(np.ravel(found - expected)))
    size = float(np.linalg.norm(np.ravel(expected)))
    return off / size if size > 0 else off


def largest_difference(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest relative difference of a target; both must have the same targets and shapes."""
    assert sorted(found) == sorted(expected)
    for name, delta in found.items():
        assert prod(delta.shape) == prod(expected[name].shape), name
    return max(
        difference(delta.reshape(delta.shape[0], -1), expected[name].reshape(delta.shape[0], -1))
        for name, delta in found.items()
    )


def on_targets(modules: Modules) -> dict[str, np.ndarray]:
    """The deltas of a toy LoRA by target."""
    return {TOY[name][0]: factors.delta for name, factors in modules.items()}


def account_for_all(file: LoraFile, tensors: Mapping[str, Tensor]) -> None:
    """Assert that used, skipped and unknown are all there is, each tensor once; the used are the modules' own."""
    assert sorted(account.tensor for account in file.accounts) == sorted(tensors)
    assert {account.state for account in file.accounts} <= {"used", "skipped", "unknown"}
    used = {account.tensor for account in file.accounts if account.state == "used"}
    assert used == {info.name for module in file.modules.values() for info in module.roles.values()}
    assert all(account.reason for account in file.accounts if account.state == "skipped")
