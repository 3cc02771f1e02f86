"""Small real LoRA files for a tiny model, in the namings of different trainers, and what each must add.

    model = tiny_models["sd15"]
    file = write_lora(folder / "ink.safetensors", model, model.pick("attn1"), naming="kohya", seed=3)
    file.deltas["diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q"]    # (o, i), float64

The same model, weights, rank, alpha and seed give the same LoRA in every naming, exactly as long as there is
no alpha to fold. Where diffusers splits a fused weight, the rows of up are cut and down is repeated.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from .tiny_models import TinyModel
from lora_alloy.lora.target import TEXT_ENCODERS, Part, Route

__all__ = ["NAMINGS", "LoraFile", "Naming", "names_of", "write_lora"]

Naming = Literal["kohya", "diffusers", "ai-toolkit", "comfyui"]
NAMINGS: tuple[Naming, ...] = ("kohya", "diffusers", "ai-toolkit", "comfyui")

_KOHYA_TEXT = {
    ("sd15", "clip_l"): "lora_te_",
    ("sdxl", "clip_l"): "lora_te1_",
    ("sdxl", "clip_g"): "lora_te2_",
    ("flux", "clip_l"): "lora_te1_",
    ("flux", "t5xxl"): "lora_te3_",
}
# Names of the same weights in Flux 2 and in class-conditioned UNets
_OTHER_MODELS = re.compile(
    r"(linear_in|linear_out|to_qkv_mlp_proj|class_embedding[._]linear_[12]|single_transformer_blocks\.\d+\.attn\.to_out)$"
)
_METADATA: dict[str, dict[str, str]] = {
    "kohya": {"ss_network_module": "networks.lora"},
    "diffusers": {"format": "pt"},
    "ai-toolkit": {"format": "pt", "software": '{"name": "ai-toolkit"}'},
    "comfyui": {},
}


@dataclass(frozen=True)
class LoraFile:
    """A file, and the delta `(*w)` in float64 that each weight gains from it at strength 1."""

    path: Path
    deltas: dict[str, np.ndarray]


def names_of(model: TinyModel, naming: Naming) -> dict[str, list[tuple[str, Route]]]:
    """By weight, the names that `naming` has for it: several where it splits a fused weight."""
    found: dict[str, list[tuple[str, Route]]] = {}
    for name, route in model.names.items():
        spelled = _spelling(model.family, name, route.target.weight, naming)
        if spelled is not None:
            found.setdefault(route.target.weight, []).append((spelled, route))
    return found


def _spelling(family: str, name: str, weight: str, naming: Naming) -> str | None:
    """The name as `naming` spells it, or `None` if `name` is of another naming."""
    if naming == "comfyui":
        return name if name == weight else None
    if _OTHER_MODELS.search(name):
        return None
    if naming == "kohya":
        return name if _is_kohya(family, name, weight) else None
    prefixes = ("transformer.",) if family == "flux" else ("unet.",)
    if naming == "diffusers":
        prefixes += ("text_encoder.", "text_encoder_2.")
    if not name.startswith(prefixes):
        return None
    if ".processor.to_" in name:
        # ComfyUI knows the attention of UNets under diffusers' old names only; PEFT writes the module's own
        return name.replace(".processor.to_", ".to_") + ".0" * name.endswith(".to_out")
    return name


def _is_kohya(family: str, name: str, weight: str) -> bool:
    """Kohya names the weights of SD 1.5 as diffusers does, and those of other models as they are."""
    if weight.startswith(TEXT_ENCODERS):
        return name.startswith(_KOHYA_TEXT[family, weight.split(".")[1]])
    is_native = name == "lora_unet_" + weight.removeprefix("diffusion_model.").replace(".", "_")
    return name.startswith("lora_unet_") and is_native is not (family == "sd15")


def _factors(weight: str, shape: tuple[int, ...], rank: int, seed: int, size: float) -> tuple[Tensor, Tensor]:
    """Up `(o, r)` and down `(r, i, *k)`; the delta is about `size` times the tiny model's own weight."""
    digest = hashlib.sha256(f"{seed} {weight}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))
    up = torch.randn(shape[0], rank, generator=generator) * (size / math.sqrt(rank))
    down = torch.randn(rank, *shape[1:], generator=generator) / math.sqrt(math.prod(shape[1:]))
    return up, down


def _rows(up: Tensor, part: Part | None, swap_halves: bool) -> Tensor:
    if part is not None:
        up = up[part.start : part.start + part.length]
    return torch.cat(up.chunk(2)[::-1]) if swap_halves else up


def write_lora(
    path: Path,
    model: TinyModel,
    weights: Iterable[str],
    *,
    naming: Naming,
    rank: int = 4,
    alpha: float | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    size: float = 0.3,
    metadata: Mapping[str, str] | None = None,
) -> LoraFile:
    """Write a LoRA that changes `weights` of `model`.

    Args:
        path: the `.safetensors` file.
        model: gives the shapes and the names.
        weights: as in `model.weights`; matrices and convolutions.
        naming: whose names and roles.
        rank: of every target.
        alpha: stored by kohya and comfyui, folded into up by the others; `None` stores none, the scale is 1.
        seed: of the noise; each weight has its own.
        dtype: of the stored factors; the returned deltas are those of the rounded factors.
        size: norm of the delta at scale 1, relative to the tiny model's weight.
        metadata: added to what the naming's trainer would write.

    Raises:
        KeyError: `naming` has no name for one of `weights`.
    """
    names = names_of(model, naming)
    stores_alpha = naming in ("kohya", "comfyui")
    roles = ("lora_up", "lora_down") if stores_alpha else ("lora_B", "lora_A")
    scale = 1.0 if alpha is None else alpha / rank
    tensors: dict[str, Tensor] = {}
    deltas: dict[str, np.ndarray] = {}
    for weight in weights:
        up, down = _factors(weight, model.weights[weight], rank, seed, size)
        up, down = (up if stores_alpha else up * scale).to(dtype), down.to(dtype)
        kernel = (1,) * (down.ndim - 2)
        for name, route in names[weight]:
            rows = _rows(up, route.target.part, route.swap_halves)
            tensors[f"{name}.{roles[0]}.weight"] = rows.reshape(*rows.shape, *kernel).clone()
            tensors[f"{name}.{roles[1]}.weight"] = down.clone()
            if alpha is not None and stores_alpha:
                tensors[f"{name}.alpha"] = torch.tensor(float(alpha))
        exact = up.double().numpy() @ down.double().numpy().reshape(rank, -1)
        deltas[weight] = exact.reshape(model.weights[weight]) * (scale if stores_alpha else 1.0)
    save_file(tensors, path, _METADATA[naming] | dict(metadata or {}))
    return LoraFile(path, deltas)
