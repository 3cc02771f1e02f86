"""Recipes with names: one table.

`balanced` and `vivid` come from a ground truth of 29 stacks, on which the overall scale decides and the
direction hardly does (`design.md` §3a): the mean norm keeps most of every LoRA's own effect, the strongest
norm serves compositions, where every trigger stands in one prompt.
"""

from ..core.registry import Registry
from .recipe import AUTO, Recipe

PRESETS: Registry[Recipe] = Registry(
    "preset",
    {
        "balanced": Recipe(method=AUTO, global_scale="mean"),
        "vivid": Recipe(method="weighted_sum", global_scale="strongest"),
        "plain": Recipe(method="weighted_sum", auto_strength=False),
    },
)
