"""A stand-in for torchvision: the few names that ComfyUI's modules ask for while they are imported.

PyPI's torchvision does not import beside a CPU-only torch, and ComfyUI imports it unconditionally; the
harness puts this folder on the server's path only where the real one does not import.
"""

from . import transforms

__all__ = ["transforms"]
