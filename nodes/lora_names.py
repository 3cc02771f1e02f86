"""Which installed LoRA a saved name means: names outlive folders, file endings and operating systems."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

# In the order of preference where two files differ in nothing else.
LORA_SUFFIXES = (".safetensors", ".sft", ".pt", ".ckpt", ".bin", ".pth")

SHORTEST_FRAGMENT = 3


@dataclass(frozen=True)
class Match:
    """The installed name that was meant; `note` says what was assumed, and is empty where nothing was."""

    name: str
    note: str = ""


def match(name: str, listed: Sequence[str]) -> Match | None:
    """Find the installed LoRA that `name` means.

    Tried in turn: the name as it stands, with `/` for `\\`, ignoring case, without its file ending, by the
    base name of a path (the file whose folders agree best), and, for a word without folder or ending, the
    one file whose name contains it. Several equal hits give the first by file ending and alphabet.

    Args:
        name: what a workflow, a script or another pack calls it.
        listed: the installed names, relative to their LoRA folder.
    """
    if name in listed:
        return Match(name)
    name = name.strip()
    if "\0" in name:
        return None
    wanted = _parts(name)
    if not wanted:
        return None
    paths = {entry: _parts(entry) for entry in listed}
    for same in (_same, _same_ignoring_case):
        hits = [entry for entry, parts in paths.items() if same(wanted, parts)]
        if hits:
            return _choose(name, hits)
    hits = [entry for entry, parts in paths.items() if _same_ignoring_case(wanted[-1:], parts[-1:])]
    if hits:
        return _choose_by_folders(name, wanted, {entry: paths[entry] for entry in hits})
    return _containing(name, wanted, paths)


def nearest(name: str, listed: Sequence[str], count: int = 3) -> list[str]:
    """Up to `count` installed names that look like `name`, the closest first."""
    parts = _parts(name)
    if not parts:
        return []
    stems: dict[str, list[str]] = {}
    for entry in listed:
        stems.setdefault(_stem(_parts(entry)[-1]).casefold(), []).append(entry)
    word = _stem(parts[-1]).casefold()
    close = get_close_matches(word, stems, n=count, cutoff=0.5)
    close += [stem for stem in sorted(stems) if word in stem and stem not in close]
    return [entry for stem in close for entry in stems[stem]][:count]


def _parts(name: str) -> tuple[str, ...]:
    """The components of a path of any operating system, in composed Unicode (macOS lists decomposed)."""
    composed = unicodedata.normalize("NFC", name).replace("\\", "/")
    return tuple(part for part in composed.split("/") if part not in ("", "."))


def _stem(file_name: str) -> str:
    base, dot, _ = file_name.rpartition(".")
    return base if dot and file_name.lower().endswith(LORA_SUFFIXES) else file_name


def _same(wanted: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if wanted[-1] == _stem(wanted[-1]):  # without an ending, any ending will do
        parts = (*parts[:-1], _stem(parts[-1]))
    return wanted == parts


def _same_ignoring_case(wanted: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    return _same(tuple(map(str.casefold, wanted)), tuple(map(str.casefold, parts)))


def _preference(entry: str) -> tuple[int, str, str]:
    suffix = next(
        (i for i, end in enumerate(LORA_SUFFIXES) if entry.lower().endswith(end)), len(LORA_SUFFIXES)
    )
    return suffix, entry.casefold(), entry


def _choose(name: str, hits: list[str]) -> Match:
    first, *rivals = sorted(hits, key=_preference)
    if not rivals:
        return Match(first)
    others = ", ".join(repr(rival) for rival in rivals)
    return Match(first, f"{name!r} fits {len(hits)} installed LoRAs: {first!r} is used, not {others}.")


def _choose_by_folders(name: str, wanted: tuple[str, ...], hits: dict[str, tuple[str, ...]]) -> Match:
    """Of files with the right base name, the one that shares most trailing folders with `wanted`."""
    shared = {entry: _shared_folders(wanted, parts) for entry, parts in hits.items()}
    most = max(shared.values())
    chosen = _choose(name, [entry for entry in hits if shared[entry] == most])
    if chosen.note or len(wanted) == 1 or most == len(hits[chosen.name]) - 1:
        return chosen
    return Match(
        chosen.name, f"{name!r} is not installed; {chosen.name!r} has the same file name and is used."
    )


def _shared_folders(wanted: tuple[str, ...], parts: tuple[str, ...]) -> int:
    count = 0
    for ours, theirs in zip(reversed(wanted[:-1]), reversed(parts[:-1]), strict=False):
        if ours.casefold() != theirs.casefold():
            break
        count += 1
    return count


def _containing(name: str, wanted: tuple[str, ...], paths: dict[str, tuple[str, ...]]) -> Match | None:
    word = wanted[-1].casefold()
    if len(wanted) > 1 or len(word) < SHORTEST_FRAGMENT or word != _stem(word):
        return None
    hits = [entry for entry, parts in paths.items() if word in _stem(parts[-1]).casefold()]
    if len(hits) != 1:
        return None
    return Match(
        hits[0], f"{name!r} is not installed; {hits[0]!r} is the only LoRA that contains it and is used."
    )
