"""Entries, strengths, and the targets they share.

A stack is resolved once, from headers: every module of every file is led to a target, fused and split
spellings of one weight meet on the coarsest common partition, shapes are checked, and everything that does
not fit is said in one message before any work begins (`design.md` §1.2, §4).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isfinite

from ..core.errors import StackError
from ..core.memory import give_back
from . import keys
from .choosing import family_of
from .entries import Contribution, Entry, Group, Model, no_base
from .factors import Delta
from .filtering import filtered_groups
from .formats import Problem, others
from .grouping import Table, led
from .headers import brief
from .keys import Family
from .target import Target
from .told import groups

RELEASE_EVERY = 64
STRENGTH_LIMIT = 1e6  # what the squares of energies can bear, and far beyond any use
BIAS = ".bias"

__all__ = ["Contribution", "Entry", "Group", "Model", "Stack", "build_stack"]


@dataclass(frozen=True)
class Stack:
    """Entries and the groups of targets they share; made by `build_stack`.

    Attributes:
        entries: in the user's order, duplicates added up and entries without any strength left out.
        groups: model targets first, then text encoders, each by name.
        family: the family all entries agree on, or None.
        model: what the host knows of the base model, or None.
        spellings: names from the files for targets that no family names.
        unmatched: per entry, the modules that the model does not have.
        notes: what the user should know, in sentences.
        clean: what is done to every delta that is not preserved, before anybody sees it; None for nothing.
    """

    entries: tuple[Entry, ...]
    groups: tuple[Group, ...]
    family: Family | None
    model: Model | None
    spellings: Mapping[Target, str]
    unmatched: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    clean: Callable[[Delta], Delta] | None = None

    def lead(self, name: str) -> Target | None:
        """Where a module's key leads: the way of the model, of the family, or by the name alone."""
        if name.endswith(BIAS) and (whole := self.lead(name.removesuffix(BIAS))):
            return Target(whole.weight + BIAS, whole.part)
        route = led(name, self.family, self.model)
        if route is None and self.model is None:
            return Target(keys.loose_name(name))
        return route.target if route else None

    @property
    def wider(self) -> frozenset[Target]:
        """The targets whose base weight is to be filled up with zeros, where it is smaller than the merge."""
        return frozenset(group.target for group in self.groups if group.is_wider)

    def height(self, weight: str) -> int:
        """The rows of a whole weight, as the model or the family has them; 0 if neither is known."""
        if self.model is not None and (shape := self.model.shapes.get(weight)):
            return shape[0]
        return keys.rows(weight, self.family) if self.family else 0

    def release(self) -> None:
        """Close the files, which are opened again when they are read, and give back the memory that is free.

        Raises:
            FileError: somebody wrote into one meanwhile.
        """
        for entry in self.entries:
            entry.file.tensors.release()
        give_back()

    def walk(self) -> Iterator[Group]:
        """The groups, one by one; now and then, and at the end, the files are checked for changes.

        Raises:
            FileError: somebody wrote into one meanwhile.
        """
        for count, group in enumerate(self.groups, 1):
            yield group
            if count % RELEASE_EVERY == 0:
                self.release()
        self.release()

    def load(self, group: Group) -> list[Delta]:
        """The deltas of one group, in factors, in the order of its contributions."""
        return [self.load_one(one) for one in group.contributions]

    def load_one(self, one: Contribution) -> Delta:
        """The delta of one contribution."""
        entry = self.entries[one.entry]
        delta = one.load(entry.file, self.model)
        # What a formula made has been cleaned where it was made.
        if self.clean is None or entry.preserve or one.module.home is not None:
            return delta
        return self.clean(delta)


def build_stack(
    entries: Sequence[Entry],
    model: Model | None = None,
    partial: bool = False,
    honour_metadata: bool = False,
) -> Stack:
    """Resolve entries into groups of shared targets.

    Args:
        entries: at least one.
        model: what the host knows of the base model; None resolves by family, or by module name alone.
        partial: go on without the modules that are not read; otherwise they stop the merge.
        honour_metadata: take scales from headers where files store none, which loaders do not.

    Raises:
        StackError: nothing is left to merge, or entries do not fit together, or modules cannot be read.
    """
    notes: list[str] = []
    if honour_metadata:
        entries = [replace(entry, file=entry.file.honouring()) for entry in entries]
    _refuse_families(entries, model)
    kept = _without_idle(_added_up(entries, notes), notes)
    notes += (note for entry in kept for note in _honoured(entry))
    if not kept:
        raise StackError(
            "The stack is empty, or its strengths are 0 or add up to 0: name at least one LoRA with a strength"
            " other than 0."
        )
    _refuse_unread(kept, model, partial, notes)
    family = family_of(kept, model)
    table = Table(family, model)
    for index, entry in enumerate(kept):
        table.add(index, entry)
    groups, filtered = filtered_groups(table.groups(kept), kept)
    notes += [*table.notes, *filtered]
    unmatched = tuple(tuple(names) for names in table.unmatched)
    if model is not None:
        _refuse_strangers(kept, unmatched)
        _report_unmatched(kept, unmatched, model, notes)
    if filtered and not groups:
        raise StackError(f"The key filters leave nothing to merge. {' '.join(filtered)} Set them to `all`.")
    if not groups:
        raise StackError(_nothing_fits(kept, family, model))
    return Stack(tuple(kept), groups, family, model, table.spellings, unmatched, tuple(notes))


def _refuse_families(entries: Sequence[Entry], model: Model | None) -> None:
    """Stop at LoRAs of several families, or of another than the model's, before any file is read whole.

    Files of one size may be one file, whose strengths may cancel: they are told apart by content, and judged then.
    """
    acting = [entry for entry in entries if entry.strength or entry.strength_on_clip]
    sizes = Counter(entry.file.tensors.size_bytes for entry in acting)
    try:
        family_of([entry for entry in acting if sizes[entry.file.tensors.size_bytes] == 1], model)
    except StackError:
        family_of(acting, model)  # it names all of them
        raise


def _added_up(entries: Iterable[Entry], notes: list[str]) -> list[Entry]:
    """Entries with one content become one, their strengths added; the fields say so to the user."""
    alike: dict[tuple[str, bool, bool, str, str], list[Entry]] = {}
    for entry in entries:
        for value in (entry.strength, entry.clip_strength):
            if value is not None and not isfinite(value):
                raise StackError(f"The strength of `{entry.file.label}` is {value}; it must be a number.")
            if value is not None and abs(value) > STRENGTH_LIMIT:
                raise StackError(
                    f"The strength of `{entry.file.label}` is {value:g}; it must lie between"
                    f" {-STRENGTH_LIMIT:g} and {STRENGTH_LIMIT:g}."
                )
        file = entry.file
        identity = (file.sha256, entry.preserve, bool(file.told), entry.conflict_mode, entry.key_filter)
        alike.setdefault(identity, []).append(entry)
    added = [_added(ones) for ones in alike.values()]
    for ones, entry in zip(alike.values(), added, strict=True):
        if len(ones) > 1:
            notes.append(
                f"`{entry.file.label}` stands {len(ones)} times in the stack; its strengths are added to"
                f" {entry.strength:g} (CLIP {entry.strength_on_clip:g})."
            )
    return added


def _added(ones: Sequence[Entry]) -> Entry:
    # Rounded once, at the end: the sum does not depend on the order.
    strength, clip = fsum(one.strength for one in ones), fsum(one.strength_on_clip for one in ones)
    has_clip = any(one.clip_strength is not None for one in ones)
    # Of several names for one content the first by alphabet, whatever the order.
    first = min(ones, key=lambda one: one.file.label)
    return replace(first, strength=strength, clip_strength=clip if has_clip else None)


def _without_idle(entries: Iterable[Entry], notes: list[str]) -> list[Entry]:
    kept = []
    for entry in entries:
        if entry.strength == 0.0 and entry.strength_on_clip == 0.0:
            notes.append(f"`{entry.file.label}` has strength 0 and is left out.")
        else:
            kept.append(entry)
    return kept


def _honoured(entry: Entry) -> Iterator[str]:
    for told, names in groups(entry.file.told):
        yield (
            f"`{entry.file.label}`: {len(names)} of {len(entry.file.modules)} modules take a scale of"
            f" {told.scale:g} from {told.source}, as asked; loaders apply 1."
        )


def _refuse_unread(entries: Sequence[Entry], model: Model | None, partial: bool, notes: list[str]) -> None:
    sentences = []
    for entry in entries:
        unread = [*entry.file.unread, *_without_base(entry, model)]
        if unread:
            total = len(entry.file.unread) + len(entry.file.modules)
            first = unread[0]
            sentences.append(
                f"`{entry.file.label}`: {len(unread)} of {total} modules are not read; `{brief(first.name)}`"
                f" {first.text}"
            )
        odd = [account.tensor for account in entry.file.accounts if account.state == "unknown"]
        if odd:
            notes.append(
                f"`{entry.file.label}` has {len(odd)} tensors that nobody here knows, the first"
                f" `{brief(odd[0])}`; they are left out."
            )
        notes += _noted(entry)
    if sentences and not partial:
        raise StackError(
            "A merge would lose part of what was asked. "
            + ". ".join(sentences)
            + ". Take those LoRAs out, or allow a partial merge (`--partial`)."
        )
    notes += (f"{sentence}; a partial merge was asked for." for sentence in sentences)


def _noted(entry: Entry) -> Iterator[str]:
    """What is known, and left out of every merge, but for what is refused or named as unread."""
    unread = {problem.name for problem in entry.file.unread}
    lost: dict[str, list[str]] = {}
    for account in entry.file.accounts:
        known = others.known_as(account.tensor)
        is_named = (known[0] if known else account.tensor.rpartition(".")[0]) in unread
        if account.state == "skipped" and not is_named and not others.is_mark(account.tensor):
            lost.setdefault(known[1] if known else account.reason, []).append(account.tensor)
    texts = {problem.text for problem in entry.file.unread}
    for reason, names in lost.items():
        if reason not in texts:
            what = "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
            yield f"`{entry.file.label}`: {what} left out, the first `{brief(names[0])}`: {reason}."


def _without_base(entry: Entry, model: Model | None) -> list[Problem]:
    """The modules whose effect depends on base weights, where there are none."""
    if model is not None and model.base is not no_base:
        return []
    return [
        Problem(
            module.name,
            f"comes with {module.base_reason}, whose effect depends on the base weight; give it with `--base`",
            is_damage=False,
        )
        for module in entry.file.modules.values()
        if module.base_reason
    ]


def _refuse_strangers(entries: Sequence[Entry], unmatched: Sequence[Sequence[str]]) -> None:
    """Stop where a LoRA has a part for the model, and none of it has a place there."""
    strangers = []
    for entry, names in zip(entries, unmatched, strict=True):
        lost = {name for name in names if not keys.is_text(name)}
        if lost and all(name in lost or keys.is_text(name) for name in entry.file.modules):
            families = entry.file.families
            found = f"for {families[0].title}" if families else "of an architecture unknown here"
            strangers.append(
                f"`{entry.file.label}` is {found}, and none of its {len(lost)} modules is in this model"
            )
    if strangers:
        raise StackError(
            f"{'; '.join(strangers)}. Load the model these LoRAs were trained for, or take them out of the"
            " stack."
        )


def _report_unmatched(
    entries: Sequence[Entry], unmatched: Sequence[Sequence[str]], model: Model, notes: list[str]
) -> None:
    for entry, names in zip(entries, unmatched, strict=True):
        label, total = entry.file.label, len(entry.file.modules)
        text = [name for name in names if keys.is_text(name)]
        if text and not model.has_clip:
            names = [name for name in names if name not in set(text)]
            notes.append(
                f"`{label}`: {len(text)} of {total} modules are for text encoders, and no CLIP is"
                " connected; they are left out."
            )
        if names:
            notes.append(
                f"`{label}`: {len(names)} of {total} modules ({len(names) / total:.0%}) have no place in"
                f" this model and are left out, the first `{brief(names[0])}`."
            )


def _nothing_fits(entries: Sequence[Entry], family: Family | None, model: Model | None) -> str:
    names = [name for entry in entries for name in entry.file.modules]
    if model and not model.has_clip and names and all(map(keys.is_text, names)):
        return (
            f"Nothing can be merged: all {len(names)} modules of the stack, the first `{brief(names[0])}`, are"
            " for text encoders, and no CLIP is connected. Connect the CLIP."
        )
    first = brief(names[0]) if names else "none"
    found = f"LoRAs for {family.title}" if family else "modules such as"
    where = "the model has none of their targets" if model else "no target is left"
    return (
        f"Nothing can be merged: the stack holds {found} (`{first}`), and {where}. Load the model these"
        " LoRAs were trained for."
    )
