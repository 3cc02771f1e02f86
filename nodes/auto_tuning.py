"""What every tuning node does: a sweep, or the result of an earlier one, and the selected candidate applied."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..api import Merged, stack_of
from ..autotuner.looking import Look
from ..autotuner.search import Trial
from ..autotuner.tuner_data import candidates_of, lora_hash, recipe_of_candidate, tuner_data
from ..autotuner.tuner_report import ranking_lines
from ..cache.diffs import DiffCache
from ..cache.store import Store
from ..core.log import log
from ..core.progress import Progress
from ..memory.memory import Memory
from ..tuning import tune
from . import bridge, session
from .judging import judge_of
from .optimizing import Optimized, Ready, applied, checked_strengths, merged, optimize, ready
from .tuner_settings import Asked

BEFORE, EACH, AGAIN = 3, 3, 3  # passes of a sweep before its candidates, of each of them, and of a replay
ONE = "There is one LoRA, so there is nothing to tune; it was applied as it is."
RECALLED = "The same stack and settings were tuned before; nothing was tried again."
ANALYSIS = "\n\n--- The merge ---\n"


@dataclass(frozen=True)
class AutoTuned:
    """What a tuning node hands on."""

    model: Any
    clip: Any
    report: str
    analysis_report: str
    tuner_data: dict[str, Any] | None
    lora_data: dict[str, Any] | None

    @property
    def both(self) -> str:
        """Both reports in one."""
        return self.report + (ANALYSIS + self.analysis_report if self.analysis_report else "")


def auto_tune(
    model: Any,
    clip: Any | None,
    lora_stack: object,
    asked: Asked,
    output_strength: float,
    clip_strength_multiplier: float,
) -> AutoTuned:
    """Find the best ways of merging a stack, and apply the selected one to clones.

    Args:
        model: MODEL; not changed.
        clip: CLIP or None; not changed.
        lora_stack: LORA_STACK of any pack; not changed.
        asked: what is asked of the sweep.
        output_strength: at which the result is applied; negative for what the merge suggests.
        clip_strength_multiplier: a further factor on the text encoders, for every entry alike.

    Raises:
        AlloyError: a file, an entry or the stack as a whole cannot be merged.
    """
    strengths = checked_strengths(output_strength, clip_strength_multiplier)
    store = session.memory_of(asked.memory_mode, bridge.memory_folder())
    diff_cache = session.diff_cache_of(*asked.diff_cache, asked.top_n)
    stack = ready(model, clip, lora_stack)
    if not stack.entries:
        return AutoTuned(model, clip, stack.idle, "", None, None)
    if len(stack.entries) == 1:
        return _alone(model, clip, lora_stack, asked, strengths)
    owners = bridge.base_models(model, clip)
    tried = _Tried(stack, asked, Memory(store))
    data, made = tried.recalled(owners), None
    is_recalled = data is not None
    if data is None:
        with diff_cache:
            data, made = _swept(model, clip, stack, asked, strengths, store, diff_cache)
    elif not asked.is_tuning_only:
        made = _again(stack, data, _rank(asked, data), asked, store)
    # Not before all of it is done: who cancels gets nothing of it.
    tried.keep(owners, data)
    cached = [diff_cache.told()] if diff_cache.stats.hits or diff_cache.stats.why else []
    notes = [*stack.notes, *cached, *(store.notes if store else ())]
    report = _report(data, asked, _rank(asked, data), is_recalled, notes)
    if made is None:
        return AutoTuned(model, clip, report, "", data, None)
    done = applied(model, clip, stack, made, *strengths)
    return AutoTuned(done.model, done.clip, report, done.report, data, done.lora_data)


def _rank(asked: Asked, data: Mapping[str, Any]) -> int:
    return min(asked.selection, len(candidates_of(data)))


def _alone(
    model: Any, clip: Any | None, lora_stack: object, asked: Asked, strengths: tuple[float, float]
) -> AutoTuned:
    if asked.is_tuning_only:
        return AutoTuned(model, clip, ONE, "", None, None)
    done = optimize(model, clip, lora_stack, asked.recipe, *strengths, on_gpu=asked.on_gpu)
    return AutoTuned(done.model, done.clip, ONE, done.report, None, done.lora_data)


def _swept(
    model: Any,
    clip: Any | None,
    stack: Ready,
    asked: Asked,
    strengths: tuple[float, float],
    store: Store | None,
    diff_cache: DiffCache,
) -> tuple[dict[str, Any], Merged | None]:
    """TUNER_DATA of a sweep, and the selected candidate; None where only tuning is asked for."""
    progress = _progress(asked, fresh=True)
    device = bridge.work_device(asked.on_gpu)
    recipe = replace(asked.recipe, formula=stack.formula)

    def hosted(trial: Trial) -> Optimized:
        plan = trial.candidate.plan
        assert plan is not None
        return applied(
            model, clip, stack, Merged(trial.stack, plan, trial.measured, trial.patches), *strengths
        )

    tuning = tune(
        list(stack.entries),
        recipe,
        model=stack.known,
        top_n=asked.top_n,
        evaluate=judge_of(asked.evaluator, asked.legacy, hosted),
        look=Look(asked.spectra, is_legacy=bool(asked.legacy)),
        progress=progress,
        device=device,
        make_room=bridge.make_room(device),
        memory=store,
        diff_cache=diff_cache,
    )
    sources = [(entry.name, entry.strength) for entry in stack.read]
    data = tuner_data(tuning.tuned, recipe, sources=sources, legacy=asked.legacy, told=asked.told)
    log.info("tried %d ways of merging %d LoRAs", tuning.tuned.tried, len(stack.entries))
    if asked.is_tuning_only:
        return data, None
    return data, tuning.pick(_rank(asked, data), progress=progress, device=device)


def _again(stack: Ready, data: Mapping[str, Any], rank: int, asked: Asked, store: Store | None) -> Merged:
    recipe, tuned = recipe_of_candidate(data, rank)
    progress, device = _progress(asked, fresh=False), bridge.work_device(asked.on_gpu)
    return merged(stack, recipe, tuned, progress, device, memory=store)


class _Tried:
    """What is known of earlier sweeps: of this process, and of those before it."""

    def __init__(self, stack: Ready, asked: Asked, memory: Memory) -> None:
        self._stack, self._asked, self._memory = stack, asked, memory
        self._key = _key(stack, asked)
        self._sources = [(entry.name, entry.strength) for entry in stack.read]

    def recalled(self, owners: Sequence[Any]) -> dict[str, Any] | None:
        """TUNER_DATA of the same sweep, under the names that the LoRAs have now."""
        found = None
        if self._asked.is_cached and self._asked.memory_mode != "clear_and_run":
            found = session.recall_tuning(self._key, owners)
        keys = self._keys()
        if found is None and keys is not None:
            found = self._memory.recall_tuning(keys)
        if not isinstance(found, dict) or not candidates_of(found):
            return None
        names = [{"name": name, "strength": strength} for name, strength in self._sources]
        return {**found, "lora_hash": lora_hash(self._sources), "source_loras": names}

    def keep(self, owners: Sequence[Any], data: dict[str, Any]) -> None:
        """Remember a finished sweep."""
        if self._asked.is_cached:
            session.remember_tuning(self._key, owners, data)
        self._memory.keep_tuning(self._keys(), data)

    def _keys(self) -> Any:
        """What a sweep is remembered by for longer; none where somebody else's code had a say in it."""
        if self._memory.store is None or self._asked.evaluator is not None:
            return None
        asked = self._asked
        recipe = replace(asked.recipe, formula=self._stack.formula)
        built = stack_of(list(self._stack.entries), self._stack.known, recipe.partial, recipe.honour_metadata)
        settings = {
            "node": [asked.top_n, asked.legacy, asked.spectra, dict(asked.told)],
            "order": [entry.file.sha256 for entry in built.entries],
        }
        return self._memory.tuning_keys(built, recipe, settings, bridge.work_device(asked.on_gpu))


def _progress(asked: Asked, *, fresh: bool) -> Progress:
    if not fresh:
        return bridge.progress_bar(AGAIN)
    again = 0 if asked.selection == 1 or asked.is_tuning_only else 1
    return bridge.progress_bar(BEFORE + EACH * asked.top_n + again)


def _key(stack: Ready, asked: Asked) -> str:
    """All that a sweep depends on, but for the base models; strengths of the output and the selection are not of it."""
    told = {
        "entries": [
            (one.name, entry.file.sha256, entry.strength, entry.strength_on_clip, entry.preserve)
            + (entry.conflict_mode, entry.key_filter)
            for one, entry in zip(stack.read, stack.entries, strict=True)
        ],
        "formula": stack.formula,
        "recipe": asked.recipe.to_json(),
        "sweep": (asked.top_n, asked.legacy, asked.spectra, asked.on_gpu),
        "evaluator": asked.evaluator and [dict(asked.evaluator), _stamp(asked.evaluator.get("module_path"))],
        "told": dict(asked.told),
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def _stamp(module_path: object) -> tuple[int, int] | None:
    """When an evaluator's file was changed, so that another one is asked again."""
    try:
        stat = Path(str(module_path)).stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size


def _report(data: Mapping[str, Any], asked: Asked, rank: int, is_recalled: bool, notes: Sequence[str]) -> str:
    lines = ranking_lines(data, 0 if asked.is_tuning_only else rank)
    if asked.is_tuning_only:
        lines += ["", "Nothing was applied, as `output_mode` asks; LoRA Merge Selector applies any of them."]
    else:
        lines += [
            "",
            f"Rank {rank} is applied. Set `selection`, or connect LoRA Merge Selector, for another one.",
        ]
    if rank != asked.selection:
        lines.append(f"Note: there is no rank {asked.selection}; the last one, {rank}, is taken.")
    if is_recalled:
        lines.append(f"Note: {RECALLED}")
    return "\n".join([*lines, *(f"Note: {note}" for note in (*asked.notes, *notes))])
