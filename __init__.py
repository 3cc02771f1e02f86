"""LoRA Alloy: analyse, merge and prove stacks of LoRAs, in ComfyUI, on the command line, from Python.

This file is ComfyUI's front door and the package's own. It is inert: it imports nothing of ours until
somebody asks for a name, so that ComfyUI, pytest and pip can each load it in their own way.
"""

__version__ = "0.1.0"
WEB_DIRECTORY = "./web"

_API = (
    "AlloyError",
    "Entry",
    "Merged",
    "Recipe",
    "Stack",
    "analyze",
    "estimate",
    "inspect",
    "load",
    "merge",
    "open_base",
    "plan",
    "rewrite",
)
_PROVING = ("verify",)
_TUNING = ("Tuning", "tune")


def __getattr__(name: str) -> object:
    if name in ("NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"):
        from . import nodes

        return getattr(nodes, name)
    if name in _API:
        from . import api

        return getattr(api, name)
    if name in _PROVING:
        from . import proving

        return getattr(proving, name)
    if name in _TUNING:
        from . import tuning

        return getattr(tuning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_API, *_PROVING, *_TUNING]
