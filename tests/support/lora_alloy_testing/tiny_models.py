"""What ComfyUI says of the tiny models of `test_pack`: their weights, and the names LoRAs have for them.

    models = read_tiny_models(tree, tmp_path)         # by family
    models["flux"].weights["diffusion_model.img_in"]  # (128, 64)
    models["flux"].names["transformer.transformer_blocks.0.attn.to_q"]     # Route(Target(…, Part(0, 0, 128)))

It takes a process of some five seconds; tests take the fixture `tiny_models`.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .comfy_tree import ComfyTree
from lora_alloy.lora.target import TEXT_ENCODERS, Part, Route, Target

__all__ = ["FAMILIES", "TinyModel", "read_tiny_models"]

FAMILIES = ("sd15", "sdxl", "flux")


@dataclass(frozen=True)
class TinyModel:
    """A tiny model and its text encoders, as ComfyUI of one version sees them.

    `weights` has the shape of every `.weight`, by `Target.weight`; `names` is ComfyUI's own key map.
    """

    family: str
    weights: dict[str, tuple[int, ...]]
    names: dict[str, Route]

    def pick(self, *fragments: str, clip: bool = False) -> list[str]:
        """Matrices and convolutions of the model, or of its text encoders, with a fragment in their name."""
        return [
            weight
            for weight, shape in self.weights.items()
            if len(shape) >= 2
            and weight.startswith(TEXT_ENCODERS) is clip
            and "embedding" not in weight
            and any(fragment in weight for fragment in fragments or ("",))
        ]


def _route(weight: str, part: list[int] | None, swap_halves: bool) -> Route:
    return Route(Target(weight, Part(*part) if part else None), swap_halves)


def read_tiny_models(tree: ComfyTree, folder: Path) -> dict[str, TinyModel]:
    """Ask ComfyUI of `tree`, in a process of its own that writes into `folder`; by family."""
    out = folder / f"tiny-models-{tree.version}.json"
    command = [sys.executable, "-m", f"{__package__}.dump_tiny_models", str(tree.path), str(out)]
    run = subprocess.run(
        command, env=tree.environment(), capture_output=True, text=True, timeout=120, check=False
    )
    if run.returncode:
        raise RuntimeError(f"ComfyUI {tree.version} could not build the tiny models:\n{run.stderr[-4000:]}")
    return {
        family: TinyModel(
            family,
            {weight: tuple(shape) for weight, shape in found["weights"].items()},
            {name: _route(*route) for name, route in found["names"].items()},
        )
        for family, found in json.loads(out.read_text(encoding="utf-8")).items()
    }
