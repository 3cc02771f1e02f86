"""All that we know of ComfyUI's internals: how it lists its LoRA files, and where they are."""

from pathlib import Path

from ..core.errors import StackError
from ..core.log import log
from .lora_names import LORA_SUFFIXES, Match, match, nearest


def list_loras() -> list[str]:
    """The installed LoRAs as ComfyUI's own menus name them: relative paths, their folder included."""
    import folder_paths

    return list(folder_paths.get_filename_list("loras"))


def lora_path(listed: str) -> Path | None:
    """The file behind a name out of `list_loras`, or None where it has gone since."""
    import folder_paths

    path = folder_paths.get_full_path("loras", listed)
    return None if path is None else Path(path)


def find_lora(name: str) -> Path | None:
    """The file that an entry of a stack names, or None where there is none.

    Any spelling that `lora_names.match` reads, and an absolute path to a LoRA file, inside ComfyUI's folders
    or outside, since other packs put those into their stacks. What had to be assumed is logged as a warning.
    """
    name = name.strip()
    if not name or "\0" in name:
        return None
    absolute = Path(name)
    if absolute.is_absolute() and absolute.suffix.lower() in LORA_SUFFIXES and absolute.is_file():
        return absolute
    found = match(name, list_loras())
    return None if found is None else lora_path(_said(found).name)


def required_name(name: str, where: str) -> str:
    """The name under which ComfyUI lists the LoRA that a widget's `name` means.

    Raises:
        StackError: it is not installed; the message begins with `where` and offers the closest names.
    """
    listed = list_loras()
    found = match(name, listed)
    if found is not None and lora_path(found.name) is not None:
        return _said(found).name
    close = nearest(name, listed)
    if close:
        advice = f"Closest installed: {', '.join(repr(entry) for entry in close)}."
    else:
        advice = "Put the file into ComfyUI's `loras` folder and refresh, or pick another LoRA."
    raise StackError(f"{where}: no LoRA called {name!r} is installed. {advice}")


def _said(found: Match) -> Match:
    if found.note:
        log.warning("%s", found.note)
    return found
