"""What a merge asks of the memory; without one, or where it is off, everything is made anew."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch

from ..analysis.measure import measure
from ..analysis.similarity import Measured
from ..cache.store import Store
from ..core.progress import Progress, silent
from ..lora.entries import Entry
from ..lora.given import EntryLike, entry_of
from ..lora.stack import Stack
from ..merging.patch import Patch
from ..merging.plan import Plan
from ..merging.recipe import Recipe
from . import results, tuning
from .analysis import Analysis
from .contents import content_hash
from .program import is_changed, machine, program


class Outcome(NamedTuple):
    """A remembered merge; `patches` is None where only the plan is remembered, which gives the same again."""

    plan: Plan
    measured: list[Measured]
    patches: tuple[Patch, ...] | None


class Memory:
    """Remembers in a store what can be, and finds it again.

    Attributes:
        store: None where nothing is remembered.
    """

    def __init__(self, store: Store | None) -> None:
        self.store = store if store is not None and store.mode != "disabled" and _is_sound(store) else None
        self._base: dict[str, Any] = {"program": program()} if self.store else {}

    def known(self, stack: Stack | Sequence[EntryLike]) -> Stack | list[Entry]:
        """The entries, their contents told by what is remembered of their files."""
        if isinstance(stack, Stack):
            return stack
        entries = [entry_of(one) for one in stack]
        if self.store is not None:
            for entry in entries:
                entry.file.hash_by(partial(content_hash, self.store))
        return entries

    def measure(
        self,
        stack: Stack,
        recipe: Recipe | None = None,
        *,
        is_deep: bool = False,
        progress: Progress = silent,
    ) -> list[Measured]:
        """What `analysis.measure` gives, to the bit; `recipe` is what the stack is cleaned by.

        Raises:
            FileError: a file holds values that are not finite.
        """
        if self.store is None or (recipe is None and stack.clean is not None):
            return measure(stack, is_deep=is_deep, progress=progress)
        analysis = Analysis(self.store, {**self._base, "machine": machine("cpu")})
        return analysis.measure(stack, recipe or Recipe(), is_deep=is_deep, progress=progress)

    def key(
        self, stack: Stack, recipe: Recipe, device: torch.device | str, is_lazy: bool = False
    ) -> dict[str, Any] | None:
        """What a merge is remembered by; None where nothing is."""
        if self.store is None:
            return None
        return results.result_key(stack, recipe, self._base, device, is_lazy)

    def recall(self, key: dict[str, Any] | None, stack: Stack, progress: Progress = silent) -> Outcome | None:
        """The merge of a stack, if it is remembered."""
        if self.store is None or key is None:
            return None
        found = results.recall(self.store, key, stack)
        if found is None:
            return None
        for what in ("analyse", "plan"):
            progress(what, len(stack.groups), len(stack.groups))
        return Outcome(*found)

    def keep(
        self,
        key: dict[str, Any] | None,
        stack: Stack,
        plan: Plan,
        measured: Sequence[Measured],
        patches: Sequence[Patch],
    ) -> None:
        """Remember the merge of a stack."""
        if self.store is not None and key is not None:
            with suppress(ValueError):  # a number that is not finite, which JSON does not have
                results.keep(self.store, key, stack, plan, measured, patches)

    def tuning_keys(
        self, stack: Stack, recipe: Recipe, settings: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """What a tuning is remembered by, see `tuning.tuning_keys`; None where nothing is."""
        if self.store is None:
            return None
        return tuning.tuning_keys(stack, recipe, settings, self._base, device)

    def recall_tuning(self, keys: tuple[dict[str, Any], dict[str, Any]] | None) -> Any | None:
        """What a tuner remembered, if it did."""
        return tuning.recall_tuning(self.store, keys) if self.store and keys else None

    def keep_tuning(self, keys: tuple[dict[str, Any], dict[str, Any]] | None, value: Any) -> None:
        """Remember a tuner's value, of JSON's own kinds."""
        if self.store and keys:
            tuning.keep_tuning(self.store, keys, value)


def _is_sound(store: Store) -> bool:
    """Whether the program is what its files say, so that it may be part of a key."""
    try:
        if not is_changed():
            return True
        store.note(
            "The program was changed after it was started; nothing is remembered until it starts again."
        )
    except OSError as problem:
        store.note(f"The program's own files cannot be read ({problem.strerror}); nothing is remembered.")
    return False
