"""What settings ask of a node beside the recipe: where its work is done, and in which form its result is kept."""

from collections.abc import Mapping
from typing import Any

from ..merging.settings import LAZY, is_one_of


def is_lazy(settings: Mapping[str, Any]) -> bool:
    """Whether results of full rank are not to be kept, but worked out when they are needed."""
    return is_one_of(settings.get("patch_compression"), (LAZY,))


def is_on_gpu(settings: Mapping[str, Any]) -> bool:
    """Whether element-wise work is to be done on ComfyUI's device."""
    return not is_one_of(settings.get("svd_device"), ("cpu",))
