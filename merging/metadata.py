"""What a merged file says of itself in its header: sources, recipe, error, base model. Strings only, no
dates: the same input gives the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from .. import __version__
from ..core.errors import RecipeError
from ..lora.stack import Stack
from .patch import Patch
from .plan import Plan, Source
from .recipe import Recipe

_RECIPE, _SAVED, _SOURCES, _ERROR = (
    "lora_alloy.recipe",
    "lora_alloy.saved",
    "lora_alloy.sources",
    "lora_alloy.error",
)
TRIGGER_LIMIT = 1000


@dataclass(frozen=True)
class Described:
    """How a merged file says that it was made. `sources` is empty if it does not tell them readably."""

    recipe: Recipe
    naming: str = "comfyui"
    gain: float = 1.0
    clip_gain: float = 1.0
    rank: int = 0
    size_bytes: int = 0
    sources: tuple[Source, ...] = ()


def describe(plan: Plan, patches: Sequence[Patch], stack: Stack, how: Described) -> dict[str, str]:
    """The header of a merged file; its sources go by name, so that the stack's order changes no byte."""
    sources = sorted(plan.sources, key=lambda source: (source.label, source.sha256, source.preserve))
    ranks = {patch.rank for patch in patches}
    worst = max((patch.error for patch in patches), default=0.0)
    told = {
        "format": "pt",
        "tool": f"LoRA Alloy {__version__}",
        "source_loras": ", ".join(f"{source.label} @ {source.strength:g}" for source in sources),
        _RECIPE: _json(plan.recipe.to_json()),
        _SAVED: _json(
            {name: value for name, value in vars(how).items() if name not in ("recipe", "sources")}
        ),
        _SOURCES: _json([asdict(source) for source in sources]),
        _ERROR: f"{worst:.3e}",
        "ss_network_module": "networks.lora",
        "ss_network_dim": str(max(ranks, default=0)),
        "ss_network_alpha": str(max(ranks, default=0)),
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.title": " + ".join(source.label.removesuffix(".safetensors") for source in sources),
        "modelspec.merged_from": ", ".join(source.label for source in sources),
        "modelspec.implementation": "lora_alloy",
    }
    if how.naming == "diffusers":
        # PEFT's readers take rank and alpha from the tensors; kohya's words would say nothing to them.
        del told["ss_network_module"], told["ss_network_dim"], told["ss_network_alpha"]
    if stack.family is not None:
        told["ss_base_model_version"] = stack.family.ss_base_model_version
        told["modelspec.architecture"] = stack.family.modelspec
    if triggers := _triggers(stack):
        told["modelspec.trigger_phrase"] = triggers
    return told


def is_ours(metadata: Mapping[str, str]) -> bool:
    """Whether a file with this header was written by this program."""
    return _RECIPE in metadata


def described(metadata: Mapping[str, str]) -> Described | None:
    """How a file says that it was made; None if it does not, or not readably."""
    if _RECIPE not in metadata or _SAVED not in metadata:
        return None
    try:
        saved = json.loads(metadata[_SAVED])
        recipe = Recipe.parse(metadata[_RECIPE], "the recipe in the file's header")
        sources = _sources(metadata.get(_SOURCES, "[]"))
        gains = float(saved["gain"]), float(saved["clip_gain"])
        sizes = int(saved.get("rank", 0)), int(saved.get("size_bytes", 0))
        return Described(recipe, str(saved["naming"]), *gains, *sizes, sources)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, RecipeError):
        return None


def _sources(text: str) -> tuple[Source, ...]:
    return tuple(
        Source(
            label=str(one["label"]),
            sha256=str(one["sha256"]),
            strength=float(one["strength"]),
            clip_strength=float(one["clip_strength"]),
            preserve=one["preserve"] is True,
        )
        for one in json.loads(text)
    )


def _triggers(stack: Stack) -> str:
    phrases: set[str] = set()
    for entry in stack.entries:
        phrases.add(entry.file.tensors.metadata.get("modelspec.trigger_phrase", "").strip()[:TRIGGER_LIMIT])
    return ", ".join(sorted(phrases - {""}))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
