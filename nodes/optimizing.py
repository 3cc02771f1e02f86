"""What every optimizing node does: a stack is read, merged for this model, applied to clones, reported."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..api import Merged, merge
from ..core.errors import StackError
from ..core.log import log
from ..core.tensorfile import open_tensors
from ..lora import keys
from ..lora.entries import Entry
from ..lora.file import LoraFile, lora_in_memory
from ..lora.stack import Stack
from ..lora.target import Target
from ..merging.density import architecture_of
from ..merging.recipe import Recipe
from . import bridge, session
from .settings import refinement_of
from .stack_entries import StackEntry, finite, merge_formula, read_stack
from .types import STRENGTH_LIMIT

MERGED = "lora_alloy.merged"
SHOWN = 4
NAME_LIMIT = 200


@dataclass(frozen=True)
class Optimized:
    """What an optimizing node hands on; `lora_data` is None where there was nothing to merge."""

    model: Any
    clip: Any
    report: str
    lora_data: dict[str, Any] | None


def optimize(
    model: Any,
    clip: Any | None,
    lora_stack: object,
    recipe: Recipe,
    output_strength: float,
    clip_strength_multiplier: float,
    *,
    on_gpu: bool = True,
    is_lazy: bool = False,
) -> Optimized:
    """Merge a stack for a model and apply it to clones.

    Args:
        model: MODEL; not changed.
        clip: CLIP or None; not changed.
        lora_stack: LORA_STACK of any pack; not changed.
        recipe: how to merge.
        output_strength: at which the result is applied; negative for what the merge suggests.
        clip_strength_multiplier: a further factor on the text encoders, for every entry alike.
        on_gpu: do element-wise work on ComfyUI's device.
        is_lazy: do not keep results of full rank; they are made anew when ComfyUI loads the weight.

    Raises:
        AlloyError: a file, an entry or the stack as a whole cannot be merged.
    """
    output_strength = _within(output_strength, -1.0, "output_strength")
    clip_strength_multiplier = _within(clip_strength_multiplier, 0.0, "clip_strength_multiplier")
    read, notes = read_stack(lora_stack)
    if not read:
        line = "The stack is empty or all its strengths are 0: model and CLIP are unchanged."
        return Optimized(model, clip, "\n".join([line, *notes]), None)
    known = bridge.read_model(model, clip)
    if formula := merge_formula(lora_stack, read):
        recipe = replace(recipe, formula=formula)
    entries = [_entry(entry) for entry in read]
    device = bridge.work_device(on_gpu)
    merged = merge(
        entries,
        recipe,
        model=known,
        progress=bridge.progress_bar(3),
        device=device,
        make_room=bridge.make_room(device),
        is_lazy=is_lazy,
    )
    strength = merged.report.suggested_strength if output_strength < 0 else output_strength
    clip_strength = strength * clip_strength_multiplier
    patches = [patch for patch in merged.patches if not patch.target.is_clip]
    clip_patches = [patch for patch in merged.patches if patch.target.is_clip]
    data = _lora_data(merged, patches, clip_patches, strength, clip_strength)
    new_model, lost = bridge.patched(model, data["model_patches"], strength)
    new_clip = clip
    if clip is not None and clip_patches:
        new_clip, lost_clip = bridge.patched(clip, data["clip_patches"], clip_strength)
        lost += lost_clip
    notes += shortfall(lost, len(merged))
    report = _told(merged, notes, strength, clip_strength, output_strength < 0)
    log.info("merged %d LoRAs into %d targets", len(entries), len(merged))
    return Optimized(new_model, new_clip, report, data)


def _within(value: object, low: float, name: str) -> float:
    """The number of a widget, which a link brings unchecked."""
    number = finite(value, f"`{name}`")
    if not low <= number <= STRENGTH_LIMIT:
        raise StackError(f"`{name}` is {number:g}; it must lie between {low:g} and {STRENGTH_LIMIT:g}.")
    return number


def _entry(given: StackEntry) -> Entry:
    if given.tensors is not None:
        file = lora_in_memory(given.name, given.tensors, given.metadata)
        return _as_asked(Entry(file), given)
    path = bridge.find_lora(given.name)
    if path is None:
        raise StackError(
            f"No LoRA called {given.name!r:.{NAME_LIMIT}} is installed. Put the file into ComfyUI's `loras`"
            " folder, or take the entry out of the stack."
        )
    return _as_asked(Entry(_opened(path)), given)


def _as_asked(entry: Entry, given: StackEntry) -> Entry:
    return replace(
        entry,
        strength=given.strength,
        clip_strength=given.clip_strength,
        preserve=given.preserve,
        conflict_mode=given.conflict_mode,
        key_filter=given.key_filter,
    )


def _opened(path: Path) -> LoraFile:
    tensors = open_tensors(path)
    return LoraFile(path.name, path, tensors, session.content_hash)


def shortfall(lost: Sequence[str], total: int) -> list[str]:
    """A sentence, said and logged, on patches that ComfyUI did not take; none if it took them all."""
    if not lost:
        return []
    shown = ", ".join(f"`{key}`" for key in lost[:SHOWN]) + (" …" if len(lost) > SHOWN else "")
    sentence = f"ComfyUI did not take {len(lost)} of {total} patches ({len(lost) / total:.0%}): {shown}."
    log.warning("%s", sentence)
    return [sentence]


def _told(
    merged: Merged, notes: Sequence[str], strength: float, clip_strength: float, is_suggested: bool
) -> str:
    origin = ", as this merge suggests" if is_suggested else ""
    lines = [
        merged.report.text(),
        f"Applied at strength {strength:g}{origin}, CLIP at {clip_strength:g}.",
    ]
    return "\n".join([*lines, *(f"Note: {note}" for note in notes)])


def _lora_data(
    merged: Merged, patches: Sequence[Any], clip_patches: Sequence[Any], strength: float, clip_strength: float
) -> dict[str, Any]:
    """LORA_DATA (`spec/nodes.md` §2.2), and the merge itself, which is what we save."""
    model_patches = bridge.adapters(patches, merged.stack.wider)
    encoder_patches = bridge.adapters(clip_patches)
    recipe = merged.plan.recipe
    return {
        "model_patches": model_patches,
        "clip_patches": encoder_patches,
        "key_map": key_map(merged.stack, [patch.target for patch in merged]),
        "output_strength": strength,
        "clip_strength": clip_strength,
        "suggested_max_strength": merged.report.suggested_strength,
        "sum_rank": merged.report.ranks[1],
        "merge_metadata": {
            "source_loras": [
                {"name": source.label, "strength": source.strength} for source in merged.plan.sources
            ],
            "mode": recipe.method,
            "optimization_mode": "per_prefix" if recipe.scope == "target" else recipe.scope,
            "architecture": merged.plan.family or "unknown",
            "architecture_preset": architecture_of(merged.stack.family),
            "auto_strength": "enabled" if recipe.auto_strength else "disabled",
            "sparsification": recipe.sparsifier or "disabled",
            "sparsification_density": recipe.density_of(recipe.sparsifier) if recipe.sparsifier else 1.0,
            "merge_refinement": refinement_of(recipe),
            "strategy_set": recipe.strategy_set,
            "bake_strength_output": strength,
            "bake_strength_clip": clip_strength,
        },
        MERGED: merged,
    }


def key_map(stack: Stack, targets: Iterable[Target]) -> dict[Any, dict[str, str]]:
    """What each target is called in a LoRA file; the whole weight too, where a target is a part of one."""
    named: dict[Any, dict[str, str]] = {}
    for target in targets:
        name = stack.spellings.get(target) or keys.spell(target, "comfyui", stack.family) or target.weight
        named[bridge.patch_key(target)] = {"canonical_prefix": name}
        whole = bridge.patch_key(Target(target.weight))
        named.setdefault(whole, {"canonical_prefix": target.weight})
    return named
