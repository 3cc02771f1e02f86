"""Three small real LoRAs for Stable Diffusion XL, as three trainers would have written them.

They have the names, shapes, alphas, dtypes and headers of real files, and a structure worth a report: two
styles that pull the same way late in the model and against each other in its middle, and a thing that has
nothing to do with either. Their values are drawn by name, so every run makes the same files.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from ..core.linalg import product_norm
from ..core.tensorfile import write_tensors
from . import keys
from .target import Target

SHARED_RANK = 4
DECAY = 0.85
MARK = "lora_alloy.sample"


@dataclass(frozen=True)
class Sample:
    """One sample file.

    Attributes:
        name: of the file.
        naming: whose names it has: `kohya`, or `diffusers` for PEFT's.
        rank: of its modules.
        scale: alpha / rank; None stores no alpha.
        dtype: of its factors.
        has_text: whether it changes the text encoders too.
        has_convolution: whether it changes a convolution too.
        loudness: part of the model → norm of a delta there.
        shared: part of the model → how much of its delta is the two styles' common direction, -1 to 1.
        metadata: of its header.
        says: what makes it different from the others, in words.
    """

    name: str
    says: str
    naming: str
    rank: int
    scale: float | None
    dtype: torch.dtype
    has_text: bool
    has_convolution: bool
    loudness: Mapping[str, float]
    shared: Mapping[str, float]
    metadata: Mapping[str, str]


INK = Sample(
    name="ink-wash.safetensors",
    says="kohya's names, alpha, text encoders",
    naming="kohya",
    rank=16,
    scale=0.5,
    dtype=torch.float16,
    has_text=True,
    has_convolution=True,
    loudness=MappingProxyType({"input": 0.4, "middle": 0.6, "output": 0.9, "text": 0.3}),
    shared=MappingProxyType({"input": 0.3, "middle": 0.6, "output": 0.75, "text": 0.3}),
    metadata=MappingProxyType(
        {
            "ss_network_module": "networks.lora",
            "ss_network_dim": "16",
            "ss_network_alpha": "8",
            "ss_base_model_version": "sdxl_base_v1-0",
            "ss_tag_frequency": json.dumps({"10_inkwash": {"ink wash": 40, "paper": 31, "mountains": 12}}),
            "modelspec.architecture": "stable-diffusion-xl-v1-base/lora",
            "modelspec.trigger_phrase": "inkwash style",
        }
    ),
)
WATERCOLOR = Sample(
    name="watercolor.safetensors",
    says="diffusers' names, bfloat16, text encoders",
    naming="diffusers",
    rank=8,
    scale=None,
    dtype=torch.bfloat16,
    has_text=True,
    has_convolution=False,
    loudness=MappingProxyType({"input": 0.3, "middle": 0.5, "output": 0.7, "text": 0.25}),
    shared=MappingProxyType({"input": 0.25, "middle": -0.55, "output": 0.8, "text": 0.2}),
    metadata=MappingProxyType(
        {
            "format": "pt",
            "lora_adapter_metadata": json.dumps({"unet.r": 8, "unet.lora_alpha": 8, "text_encoder.r": 8}),
        }
    ),
)
ROBOT = Sample(
    name="copper-robot.safetensors",
    says="ai-toolkit's names, no text encoders",
    naming="diffusers",
    rank=12,
    scale=None,
    dtype=torch.float16,
    has_text=False,
    has_convolution=False,
    loudness=MappingProxyType({"input": 0.6, "middle": 0.8, "output": 0.4, "text": 0.0}),
    shared=MappingProxyType({"input": 0.0, "middle": 0.0, "output": 0.0, "text": 0.0}),
    metadata=MappingProxyType(
        {
            "format": "pt",
            "software": json.dumps({"name": "ai-toolkit"}),
            "ss_base_model_version": "sdxl_1.0",
            "modelspec.trigger_phrase": "c0pper robot",
        }
    ),
)
SAMPLES = (INK, WATERCOLOR, ROBOT)


def write_sample(sample: Sample, folder: Path) -> Path:
    """Write one sample file and return its path.

    Raises:
        SaveError: the folder cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for target, shape in _targets(sample):
        name = keys.spell(target, sample.naming, keys.family("sdxl"))
        assert name is not None, target
        tensors.update(_module(sample, name, target, shape))
    path = folder / sample.name
    write_tensors(path, tensors, {**sample.metadata, MARK: sample.name})
    return path


def _targets(sample: Sample) -> list[tuple[Target, tuple[int, ...]]]:
    """The attention of every first transformer block, a few text layers, one convolution; with shapes."""
    found: list[tuple[Target, tuple[int, ...]]] = []
    if sample.has_convolution:
        found.append((Target("diffusion_model.input_blocks.1.0.in_layers.2"), (320, 320, 3, 3)))
    wide = [f"input_blocks.{block}" for block in (7, 8)] + [f"output_blocks.{block}" for block in (0, 1, 2)]
    narrow = [f"input_blocks.{block}" for block in (4, 5)] + [f"output_blocks.{block}" for block in (3, 4, 5)]
    blocks = {block: 1280 for block in (*wide, "middle_block")} | {block: 640 for block in narrow}
    for block, width in blocks.items():
        for attention, read in (("attn1", width), ("attn2", 2048)):
            path = f"diffusion_model.{block}.1.transformer_blocks.0.{attention}"
            for end, inputs in (("to_q", width), ("to_k", read), ("to_v", read), ("to_out.0", width)):
                found.append((Target(f"{path}.{end}"), (width, inputs)))
    encoders = (("clip_l", 768, range(0, 12, 3)), ("clip_g", 1280, range(0, 32, 8)))
    for child, width, layers in encoders if sample.has_text else ():
        for layer in layers:
            path = f"text_encoders.{child}.transformer.text_model.encoder.layers.{layer}.self_attn"
            found += ((Target(f"{path}.{end}_proj"), (width, width)) for end in "qkv")
    return found


def _module(sample: Sample, name: str, target: Target, shape: tuple[int, ...]) -> dict[str, Tensor]:
    up, down = _factors(sample, target, shape)
    scale = 1.0 if sample.scale is None else sample.scale
    # The norm is shared between the factors, as training does it.
    up, down = up / scale**0.5, down / scale**0.5
    kernel = tuple(1 for _ in shape[2:])
    up = up.reshape(*up.shape, *kernel).to(sample.dtype)
    down = down.reshape(len(down), *shape[1:]).to(sample.dtype)
    if sample.naming == "diffusers":
        return {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
    alpha = torch.tensor(scale * len(down), dtype=sample.dtype)
    return {f"{name}.alpha": alpha, f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up}


def _factors(sample: Sample, target: Target, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """`up (o, r)`, `down (r, i)`: the styles' common part, then the sample's own, with a falling spectrum."""
    columns = shape[1] * (shape[2] * shape[3] if len(shape) == 4 else 1)
    part = _part(target)
    common_up, common_down = _drawn("style", target, shape[0], columns, SHARED_RANK)
    own_up, own_down = _drawn(sample.name, target, shape[0], columns, sample.rank - SHARED_RANK)
    share = sample.shared[part] * _mood(_block(target))
    up = torch.cat([common_up * share, own_up * (1 - share**2) ** 0.5], 1)
    down = torch.cat([common_down, own_down])
    norm = sample.loudness[part] * _mood(f"{sample.name} {_block(target)}")
    return up * norm**0.5, down * norm**0.5


def _drawn(who: str, target: Target, rows: int, columns: int, rank: int) -> tuple[Tensor, Tensor]:
    """Factors of a delta of norm 1, as `who` and the target decide."""
    seed = hashlib.blake2b(f"{who}\0{target}".encode(), digest_size=7).digest()
    chance = torch.Generator().manual_seed(int.from_bytes(seed, "little"))
    up = torch.randn(rows, rank, generator=chance) * DECAY ** torch.arange(rank)
    down = torch.randn(rank, columns, generator=chance)
    size = product_norm(up, down) ** 0.5
    # Both factors end up with the same norm.
    balance = float((up.norm() / down.norm()).sqrt())
    return up / (size * balance), down * (balance / size)


def _part(target: Target) -> str:
    return "text" if target.is_clip else _block(target).split("_")[0]


def _block(target: Target) -> str:
    """`input_blocks.4`, and for text encoders the encoder: what one mood covers."""
    steps = target.weight.removeprefix("diffusion_model.").split(".")
    return ".".join(steps[:2])


def _mood(name: str) -> float:
    """A factor of 0.75 to 1.25 that the name decides."""
    return 0.75 + hashlib.blake2b(name.encode(), digest_size=1).digest()[0] / 510
