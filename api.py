"""The Python API: what the command line and the nodes do, as functions (`design.md` §6)."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch

from .analysis.similarity import Measured
from .cache.store import Store
from .core.device import usable
from .core.errors import AlloyError as AlloyError
from .core.errors import SaveError
from .core.progress import Progress, silent, told
from .core.threads import one_thread
from .lora.base import open_base as open_base
from .lora.file import LoraFile, open_lora
from .lora.given import EntryLike as EntryLike
from .lora.given import entry_of
from .lora.given import parse_entry as parse_entry
from .lora.looking import estimate as estimate
from .lora.looking import inspect as inspect
from .lora.stack import Entry, Model, Stack, build_stack
from .memory import Memory
from .merging.cleaning import cleaner
from .merging.cost import Cost, Meter
from .merging.deferred import kept
from .merging.engine import ask_room, execute
from .merging.fit import HEADER_BYTES, fitted
from .merging.holding import held_out
from .merging.inner import assembled
from .merging.losses import MOST, refuse_losses
from .merging.metadata import Described, describe, host_of
from .merging.patch import Patch, shaped
from .merging.plan import Plan, make_plan, sources_of
from .merging.recipe import AUTO, Recipe
from .merging.report import Report, make_report
from .merging.saving import Named, Proof, named, save_patches

StackLike: TypeAlias = "Stack | Sequence[EntryLike]"


def load(path: Path | str) -> LoraFile:
    """Open a LoRA file by its header; values are read when they are needed.

    Raises:
        FileError: the file is missing, damaged, or not a LoRA.
    """
    return open_lora(path)


def stack_of(
    entries: StackLike, model: Model | None = None, partial: bool = False, honour_metadata: bool = False
) -> Stack:
    """A stack from entries: paths, `"file.safetensors:0.8:0.5"`, `(path, strength[, clip])`, or `Entry`.

    A `Stack` is taken as it is, but for scales that are to come from headers.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
    """
    if isinstance(entries, Stack):
        untold = (one.file for one in entries.entries if not one.file.told)
        if not honour_metadata or not any(file.honouring().told for file in untold):
            return entries
        return build_stack(entries.entries, entries.model, True, True)
    return build_stack([entry_of(one) for one in entries], model, partial, honour_metadata)


def analyze(
    stack: StackLike, *, progress: Progress = silent, memory: Store | None = None
) -> tuple[Stack, list[Measured]]:
    """How the LoRAs of a stack relate: norms, cosines, conflicts, overlaps, spectra, target by target.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
    """
    remembered = Memory(memory)
    built = stack_of(remembered.known(stack))
    return built, remembered.measure(built, is_deep=True, progress=progress)


def plan(
    stack: StackLike,
    recipe: Recipe | None = None,
    *,
    model: Model | None = None,
    progress: Progress = silent,
    memory: Store | None = None,
) -> Plan:
    """Decide a merge without doing it; the arguments are those of `merge`.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
    """
    recipe, remembered = recipe or Recipe(), Memory(memory)
    built, told = resolved(stack, recipe, model, {}, progress, "cpu", remembered)
    measured = remembered.measure(built, recipe, progress=progress)
    return replace(make_plan(built, recipe, measured, progress), **told)


def resolved(
    stack: StackLike,
    recipe: Recipe,
    model: Model | None,
    plans: Mapping[str, Plan],
    progress: Progress,
    device: torch.device | str,
    memory: Memory,
) -> tuple[Stack, dict[str, Any]]:
    """The stack that a plan is made for, and what the plan says of a formula.

    Args:
        stack: the entries.
        recipe: what is asked of it.
        model: the base model.
        plans: of a formula's inner merges, by label, where they are replayed.
        progress: told after every target of an inner merge.
        device: where their element-wise work is done.
        memory: what is known of the files and of inner merges.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
    """
    stack = memory.known(stack)
    if not recipe.formula:
        built = stack_of(stack, model, recipe.partial, recipe.honour_metadata)
        return replace(held_out(built, recipe), clean=cleaner(recipe)), {}
    entries = stack.entries if isinstance(stack, Stack) else stack
    host = stack.model if isinstance(stack, Stack) else model

    def measured(inner: Stack, progress: Progress) -> list[Measured]:
        return memory.measure(inner, recipe, progress=progress)

    built, inner = assembled(entries, recipe, host, plans, progress, device, measured)
    return built, {"inner": inner, "leaves": sources_of(entries)}


def merge(
    stack: StackLike,
    recipe: Recipe | Plan | None = None,
    *,
    model: Model | None = None,
    progress: Progress = silent,
    device: torch.device | str = "cpu",
    make_room: Callable[[int], object] | None = None,
    is_lazy: bool = False,
    memory: Store | None = None,
) -> "Merged":
    """Merge a stack.

    Args:
        stack: the entries.
        recipe: what to do; a plan replays it bit for bit.
        model: the base model, as `open_base` or a host knows it.
        progress: told after every target; what it raises ends the merge, and nothing is left half-done.
        device: where element-wise work is done; on the CPU where it does not fit there.
        make_room: asked before a device is used to free so many bytes of its memory, which may do less than that.
        is_lazy: let results of full rank go again; their values are made anew when they are asked for.
        memory: where analysis and results are remembered; what is found there is the same to the bit.

    Raises:
        FileError: a file cannot be read.
        StackError: the entries do not fit together.
        RecipeError: the plan is for another stack, or there is no such device.
    """
    meter = Meter()
    device = usable(device)
    asked = recipe.recipe if isinstance(recipe, Plan) else recipe or Recipe()
    plans = recipe.inner if isinstance(recipe, Plan) else {}
    remembered = Memory(memory)
    built, told = resolved(stack, asked, model, plans, progress, device, remembered)
    key = None if isinstance(recipe, Plan) else remembered.key(built, asked, device, is_lazy)
    found = remembered.recall(key, built, progress)
    if not found:
        ask_room(make_room, device, told.get("inner", {}).values())
    measured = found.measured if found else remembered.measure(built, asked, progress=progress)
    meter.lap()
    if isinstance(recipe, Plan):
        decided = recipe
    else:
        made = found.plan if found else make_plan(built, asked, measured, progress)
        decided = replace(made, **told)
    meter.lap()
    if found and found.patches is not None:
        return Merged(built, decided, measured, found.patches, meter.cost(), is_recalled=True)
    ask_room(make_room, device, [decided])
    patches = tuple(execute(built, decided, progress, device, is_lazy=is_lazy))
    if not found:
        remembered.keep(key, built, decided, measured, patches)
    return Merged(built, decided, measured, patches, meter.cost())


def rewrite(
    path: Path | str,
    *,
    rank: int = 0,
    tolerance: float = 0.0,
    dtype: str = "auto",
    model: Model | None = None,
    progress: Progress = silent,
) -> "Merged":
    """One LoRA as it is, ready to be saved in another naming, rank, size or dtype.

    Args:
        path: the file.
        rank: at most this rank for every target, 0 for its own.
        tolerance: the relative error a smaller rank may cost.
        dtype: of the result; `auto` is the file's own.
        model: what a host knows of the base model.
        progress: told after every target.

    Raises:
        FileError: the file cannot be read.
        StackError: part of it cannot be read.
        RecipeError: rank, tolerance or dtype is not allowed.
    """
    recipe = Recipe(method="weighted_sum", auto_strength=False, rank=rank, tolerance=tolerance, dtype=dtype)
    return merge([Entry(open_lora(path))], recipe, model=model, progress=progress)


@dataclass(frozen=True, eq=False, repr=False)
class Merged:
    """A finished merge: an iterable of patches that can report on itself and be saved.

    Attributes:
        stack: what was merged.
        plan: how.
        measured: what the plan was made from.
        patches: one per target.
        cost: what it took.
        is_recalled: whether all of it was remembered, and nothing was made.
    """

    stack: Stack
    plan: Plan
    measured: Sequence[Measured]
    patches: tuple[Patch, ...]
    cost: Cost | None = None
    is_recalled: bool = False

    def __iter__(self) -> Iterator[Patch]:
        return iter(self.patches)

    def __len__(self) -> int:
        return len(self.patches)

    @cached_property
    def report(self) -> Report:
        """What was done, to which targets, and how much of each LoRA is left."""
        return make_report(self.stack, self.plan, self.measured, self.patches, self.cost)

    def save(
        self,
        path: Path | str,
        *,
        naming: str = "comfyui",
        gain: float = 1.0,
        clip_gain: float = 1.0,
        rank: int = 0,
        size_bytes: int = 0,
        max_loss: float = MOST,
        notes: dict[str, str] | None = None,
        progress: Progress = silent,
    ) -> Proof:
        """Write the merged LoRA and prove that the file equals the merge.

        Args:
            path: `.safetensors` is added if it is missing.
            naming: `comfyui`, `kohya` or `diffusers`.
            gain: a factor on the model's targets, baked in.
            clip_gain: a factor on the text encoders' targets, baked in.
            rank: at most this rank for every target, 0 for the merge's own.
            size_bytes: at most this size of the file, 0 for what it takes; the directions that carry most stay.
            max_loss: how much of the result's norm rounding and KnOTS' rank limit may have taken.
            notes: more metadata.
            progress: told after every target, thrice: made ready, written, compared; what it raises ends the work,
                and nothing was replaced.

        Raises:
            SaveError: the place cannot be written, the naming lacks a target, or more than `max_loss` is gone.
            ProofError: what was written is not what was merged; nothing was replaced.
        """
        with one_thread():
            hosted = host_of(self.stack)
            told_texts = [*(notes or {}).items(), *((name, "") for name in hosted["left_out"])]
            words = sum(len(f"{name}{text}".encode("utf-8", "replace")) + 8 for name, text in told_texts)
            room = max(1, size_bytes - words - HEADER_BYTES) if size_bytes else 0
            told = Described(self.plan.recipe, naming, gain, clip_gain, rank, room, **hosted)
            pieces = self.pieces(told, progress, max_loss)
            metadata = describe(self.plan, [piece.patch for piece in pieces], self.stack, told) | (
                notes or {}
            )
            return save_patches(saved_path(path), pieces, naming, metadata, self.stack.lead, progress)

    def pieces(
        self, asked: Described, progress: Progress = silent, max_loss: float = math.inf
    ) -> list[Named]:
        """The patches as a file holds them.

        Args:
            asked: what the file says of itself.
            progress: told after every target.
            max_loss: as in `save`.

        Raises:
            ProofError: rounding took too much.
        """
        recipe, gains = self.plan.recipe, (asked.gain, asked.clip_gain)
        louder = [
            shaped(kept(one), gains[one.target.is_clip], asked.rank, may_widen=recipe.dtype == AUTO)
            for one in told(self.patches, len(self.patches), "prepare", progress)
        ]
        refuse_losses(recipe, louder, max_loss)
        pieces = named(louder, asked.naming, self.stack.family, self.stack.spellings, self.stack.height)
        wider = self.stack.wider
        pieces = [replace(piece, is_wider=piece.patch.target in wider) for piece in pieces]
        if not asked.size_bytes:
            return pieces
        cut = fitted([piece.patch for piece in pieces], asked.size_bytes)
        return [replace(piece, patch=patch) for piece, patch in zip(pieces, cut, strict=True)]


def saved_path(path: Path | str) -> Path:
    """Where `Merged.save` writes when it is given `path`: `.safetensors` is added if it is missing.

    Raises:
        SaveError: it names no file.
    """
    is_folder = str(path).endswith(("/", os.sep))
    path = Path(path)
    if is_folder or path.name in ("", "..") or _is_folder(path):
        raise SaveError(f"`{path}` is a folder; name a file to write.")
    return path if path.suffix.lower() == ".safetensors" else path.with_name(f"{path.name}.safetensors")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name longer than the file system allows; writing says so
        return False
