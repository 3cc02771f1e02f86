"""From a merged file back to what it was made of: the sources its header names, found again by content."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..core.errors import FileError, StackError
from ..lora.file import LoraFile, open_lora
from ..lora.stack import Entry
from .metadata import Described
from .plan import Source

LABEL_LIMIT = 200
SHOWN = 8


def find_sources(told: Described, folders: Sequence[Path]) -> list[Entry]:
    """The entries a merged file was made of, with their strengths.

    A source is looked for by its name and taken only if its content is the one that was merged.

    Args:
        told: what the file's header says.
        folders: where to look, in this order.

    Raises:
        StackError: the header names no sources, or some are not there; all of them are named.
    """
    if not told.sources:
        raise StackError("The file does not say what it was made of; name the LoRAs with their strengths.")
    # A file may say that it is made of the same LoRA a thousand times.
    files = {(source.label, source.sha256): _find(source, folders) for source in dict.fromkeys(told.sources)}
    missing = [f"`{label[:LABEL_LIMIT]}`" for (label, _), file in files.items() if file is None]
    if missing:
        places = ", ".join(f"`{folder}`" for folder in dict.fromkeys(folders))
        shown = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" * (len(missing) > SHOWN))
        raise StackError(
            f"Of the LoRAs it was made of, {shown} {'is' if len(missing) == 1 else 'are'} not in"
            f" {places}, or not with the content that was merged. Name the folder they lie in (`--dir`), or"
            " the LoRAs themselves with their strengths."
        )
    found = []
    for source in told.sources:
        file = files[source.label, source.sha256]
        assert file is not None
        found.append(
            Entry(
                file,
                source.strength,
                source.clip_strength,
                source.is_asked,
                source.conflict_mode,
                source.key_filter,
                held=source.held,
            )
        )
    return found


def _find(source: Source, folders: Sequence[Path]) -> LoraFile | None:
    # The header is a stranger's: a label must not lead out of the folder.
    if Path(source.label).name != source.label or "\\" in source.label or source.label in ("", ".."):
        return None
    for folder in folders:
        try:
            file = open_lora(folder / source.label)
            if file.sha256 == source.sha256:
                return file
        except FileError:
            continue
    return None


def with_preserved(entries: Sequence[Entry], told: Described) -> list[Entry]:
    """The entries as they acted in the merge: preserved, by their modes and filters; known by their content."""
    acted: dict[str, set[tuple[bool, str, str]]] = {}
    for source in told.sources:
        acted.setdefault(source.sha256, set()).add((source.is_asked, source.conflict_mode, source.key_filter))
    made = []
    for entry in entries:
        known = acted.get(entry.file.sha256, set())
        if len(known) == 1:
            ((preserve, mode, key_filter),) = known
            entry = replace(entry, preserve=preserve, conflict_mode=mode, key_filter=key_filter)
        made.append(entry)
    return made


def as_decided(entries: Sequence[Entry], told: Described) -> list[Entry]:
    """The entries, each held out of the blend or not as the merge decided; what files are called now is free."""
    decided = {(source.sha256, source.is_asked): source.held for source in told.sources}
    return [
        replace(entry, held=decided.get((entry.file.sha256, entry.preserve))) if entry.held is None else entry
        for entry in entries
    ]


def disagreements(entries: Sequence[Entry], told: Described) -> list[str]:
    """Where entries differ from what a merged file says it was made of, in sentences."""
    given = {(entry.file.sha256, entry.preserve): entry for entry in entries}
    sentences = []
    for source in told.sources:
        entry = given.pop((source.sha256, source.is_asked), None)
        kept = ", preserved" if source.is_asked else ""
        if entry is None:
            sentences.append(
                f"It says it was made with `{source.label}` at {source.strength:g}{kept}; that was not given."
            )
            continue
        clip = entry.strength_on_clip
        if (entry.strength, clip) != (source.strength, source.clip_strength):
            sentences.append(
                f"It says `{source.label}` was at {source.strength:g} (CLIP {source.clip_strength:g}); given"
                f" were {entry.strength:g} (CLIP {clip:g})."
            )
    if told.sources:
        sentences += (f"It does not name `{entry.file.label}` among its sources." for entry in given.values())
    more = [f"So it is with {len(sentences) - SHOWN} more."] if len(sentences) > SHOWN else []
    return [*sentences[:SHOWN], *more]
