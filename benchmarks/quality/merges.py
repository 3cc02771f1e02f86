"""What is judged: every way of merging that the engine offers, as recipes, and what they make of a stack."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
DEFAULT, PLAIN_SUM = "default", "plain sum"
PREFIX = "diffusion_model."
# A step is judged before these methods: the plain sum brought to the energy of its strongest LoRA, and TIES.
BEHIND = ("weighted_sum", "ties")

if "lora_alloy" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("lora_alloy", ROOT / "__init__.py")
    assert _spec and _spec.loader
    sys.modules["lora_alloy"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["lora_alloy"])

if TYPE_CHECKING:
    from lora_alloy import Recipe


def recipes() -> dict[str, "Recipe"]:
    """Every configuration by name: the default and its sets, presets, every method at every scale, every step."""
    from lora_alloy import Recipe
    from lora_alloy.merging.methods import METHODS
    from lora_alloy.merging.presets import PRESETS

    found = {DEFAULT: Recipe(), PLAIN_SUM: Recipe(method="weighted_sum", auto_strength=False)}
    found |= {f"preset {name}": preset for name, preset in PRESETS.items()}
    found |= {f"default, {words}": Recipe(strategy_set=words) for words in ("no_slerp", "basic")}
    found["default, scope global"] = Recipe(scope="global")
    for method in METHODS:
        for scale in ("none", "mean", "strongest"):
            # A scale to the mean or the strongest norm leaves auto-strength nothing to do.
            for auto in (False, True) if scale == "none" else (False,):
                name = f"{method}, {'auto-strength' if auto else 'as it is' if scale == 'none' else scale}"
                found[name] = Recipe(method=method, auto_strength=auto, global_scale=scale)
    for field, step in _steps():
        for method in BEHIND:
            if method in METHODS:
                found[f"{step} + {method}, auto-strength"] = Recipe(method=method, **{field: step})
        found[f"{step} + default"] = Recipe(**{field: step})
    found["star_eta 90 + default"] = Recipe(star_eta=90.0)
    return found


def _steps() -> list[tuple[str, str]]:
    """The field and the name of every sparsifier and enhancer that a recipe can ask for."""
    from lora_alloy.merging.recipe import REFINEMENTS
    from lora_alloy.sparsify import SPARSIFIERS

    enhancers = [*REFINEMENTS["full"], *(name for name in REFINEMENTS if name != "none")]
    return [*(("sparsify", name) for name in SPARSIFIERS), *(("enhance", name) for name in enhancers)]


def merged(files: Sequence[Path], recipe: "Recipe") -> dict[str, Tensor]:
    """The deltas `(o, i)` of a merge, by target; underscores stand for dots."""
    from lora_alloy import merge

    return {
        patch.target.weight.removeprefix(PREFIX).replace(".", "_"): patch.delta.flat()
        for patch in merge(list(files), recipe)
    }


def alone(files: Mapping[str, Path]) -> dict[str, dict[str, Tensor]]:
    """The deltas of every LoRA, through the same reader."""
    from lora_alloy import Recipe

    plain = Recipe(method="weighted_sum", auto_strength=False, dtype="float32")
    return {name: merged([path], plain) for name, path in files.items()}
