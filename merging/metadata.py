"""What a merged file says of itself in its header: sources, recipe, error, base model. Strings only, no
dates: the same input gives the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import __version__
from ..core.errors import RecipeError
from ..core.jsonvalues import as_count, as_flag, as_list, as_number, as_object, as_text
from ..lora import keys
from ..lora.stack import Stack
from .patch import Patch
from .plan import Plan, Source, source_from_json
from .recipe import Recipe

_RECIPE, _SAVED, _SOURCES, _ERROR, _BASE = (
    "lora_alloy.recipe",
    "lora_alloy.saved",
    "lora_alloy.sources",
    "lora_alloy.error",
    "lora_alloy.base",
)
TRIGGER_LIMIT = 1000


@dataclass(frozen=True)
class Described:
    """How a merged file says that it was made.

    Attributes:
        recipe: what was asked.
        naming: whose names the file has.
        gain: what the model's targets were multiplied by on saving.
        clip_gain: what the text encoders' were.
        rank: the largest rank that saving allowed, 0 for no limit.
        has_clip: whether the host had text encoders; without them their modules were left out.
        left_out: the other modules that the host's model did not have, by their names in the files.
        sources: what was merged; empty if the file does not tell it readably.
    """

    recipe: Recipe
    naming: str = "comfyui"
    gain: float = 1.0
    clip_gain: float = 1.0
    rank: int = 0
    size_bytes: int = 0
    has_clip: bool = True
    left_out: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()


def host_of(stack: Stack) -> dict[str, Any]:
    """`has_clip` and `left_out` of a stack that was merged for a host's model."""
    has_clip = stack.model is None or stack.model.has_clip
    names = {name for lost in stack.unmatched for name in lost if has_clip or not keys.is_text(name)}
    return {"has_clip": has_clip, "left_out": tuple(sorted(names))}


def describe(plan: Plan, patches: Sequence[Patch], stack: Stack, how: Described) -> dict[str, str]:
    """The header of a merged file; its sources go by name, so that the stack's order changes no byte."""
    # A formula counts them: then their order is the user's.
    sources = plan.leaves or sorted(
        plan.sources,
        key=lambda one: (one.label, one.sha256, one.preserve, one.conflict_mode, one.key_filter),
    )
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
    if stack.model is not None and stack.model.label and _depends_on_base(stack):
        told[_BASE] = stack.model.label
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
        saved = as_object(json.loads(metadata[_SAVED]))
        told = Described(
            recipe=Recipe.parse(metadata[_RECIPE], "the recipe in the file's header"),
            naming=as_text(saved["naming"]),
            gain=as_number(saved["gain"]),
            clip_gain=as_number(saved["clip_gain"]),
            rank=as_count(saved.get("rank", 0)),
            size_bytes=as_count(saved.get("size_bytes", 0)),
            has_clip=as_flag(saved.get("has_clip", True)),
            left_out=tuple(map(as_text, as_list(saved.get("left_out", [])))),
            sources=tuple(map(source_from_json, as_list(json.loads(metadata.get(_SOURCES, "[]"))))),
        )
    except (ValueError, KeyError, RecursionError, RecipeError):
        return None
    return told if told.naming in keys.NAMINGS else None


def _depends_on_base(stack: Stack) -> bool:
    return any(one.module.base_reason for group in stack.groups for one in group.contributions)


def _triggers(stack: Stack) -> str:
    phrases: set[str] = set()
    for entry in stack.entries:
        phrases.add(entry.file.tensors.metadata.get("modelspec.trigger_phrase", "").strip()[:TRIGGER_LIMIT])
    return ", ".join(sorted(phrases - {""}))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
