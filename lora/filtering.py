"""`key_filter`: targets on which a LoRA of the stack is not wanted.

Whether a target is shared is asked of the whole stack, before any LoRA is filtered (`spec/engine.md` §7.1;
`spec/newer-features.md` §2.10 for audio).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from .entries import Entry, Group
from .target import Target


def filtered_groups(groups: Sequence[Group], entries: Sequence[Entry]) -> tuple[tuple[Group, ...], list[str]]:
    """The groups without what the entries' filters keep out, and a sentence for every entry that is filtered."""
    if all(entry.key_filter == "all" for entry in entries):
        return tuple(groups), []
    out: Counter[int] = Counter()
    kept: list[Group] = []
    for group in groups:
        touching = {one.entry for one in group.contributions}
        wanted = [
            one
            for one in group.contributions
            if _wants(entries[one.entry].key_filter, group.target, len(touching))
        ]
        out.update({one.entry for one in group.contributions} - {one.entry for one in wanted})
        if wanted:
            kept.append(replace(group, contributions=tuple(wanted)))
    total = Counter(index for group in groups for index in {one.entry for one in group.contributions})
    return tuple(kept), [
        f"`{entry.file.label}`: `{entry.key_filter}` leaves out {out[index]} of its {total[index]} targets."
        for index, entry in enumerate(entries)
        if entry.key_filter != "all"
    ]


def _wants(key_filter: str, target: Target, count: int) -> bool:
    if key_filter == "shared_only":
        return count > 1
    if key_filter == "unique_only":
        return count == 1
    if key_filter == "all":
        return True
    return ("audio" in target.weight.lower()) == (key_filter == "audio_only")
