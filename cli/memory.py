"""`memory`: what is remembered between runs, how much of the disk it takes, and away with it."""

import argparse

from ..cache.places import default_folder, default_limit
from ..cache.store import Store
from ..core.errors import SaveError
from .console import Console
from .described import size
from .options import refuse_outputs
from .output import json_path, write_json

_TITLES = {
    "content": "hashes of files",
    "lora_analysis": "analysis of single LoRAs",
    "pair_analysis": "analysis of two LoRAs",
    "plan": "plans",
    "result": "results",
    "tuning": "tuning",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether to clear it."""
    parser.add_argument("--clear", action="store_true", help="delete all of it; LoRAs are never touched")


def run(options: argparse.Namespace, console: Console) -> int:
    """Show what is remembered, or delete it.

    Raises:
        RecipeError: the environment names a limit that is none.
        SaveError: the memory cannot be deleted, or the JSON cannot be written.
    """
    refuse_outputs(json_path(options.json), [], is_forced=options.force)
    store = Store(default_folder(), default_limit(), "auto" if options.clear else "read_only")
    freed = store.clear()
    if store.notes:
        raise SaveError(" ".join(store.notes))
    sizes = store.sizes()
    total = sum(taken for _, taken in sizes.values())
    if options.clear:
        console.say(f"Deleted: {size(freed)}.")
    console.say(f"Memory: {store.folder}, {size(total)} of {size(store.limit_bytes)} allowed.")
    for kind, (count, taken) in sizes.items():
        console.say(f"  {_TITLES.get(kind, kind):<25} {count:6d}  {size(taken)}")
    told = {
        "folder": store.folder,
        "limit_bytes": store.limit_bytes,
        "size_bytes": total,
        "freed_bytes": freed,
        "kinds": {kind: {"count": count, "size_bytes": taken} for kind, (count, taken) in sizes.items()},
    }
    write_json(options.json, "memory", told, console)
    return 0
