"""Where a module's name leads without a model: by its family, or by the name alone."""

from functools import lru_cache

from . import keys
from .target import Target


@lru_cache(maxsize=20_000)
def target_of(name: str, family: keys.Family | None) -> Target:
    """The target of a module; files of one trainer share their names, so that the answers are kept."""
    route = keys.resolve(name, keys.key_map(family)) if family else None
    return route.target if route else Target(keys.loose_name(name))
