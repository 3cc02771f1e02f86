"""What is done to the deltas of a target before they are merged, one file each. Its kind is what a module exports.

- `matrix(gram)`: a recombination of the LoRAs, in coefficients;
- `enhance(deltas, strengths)`: on row tiles, with what puts back afterwards what was taken out;
- `shared(deltas)`: a basis that all LoRAs share, and their blocks in it.

`star` and `tame` clean one LoRA by itself, before it meets the others.
"""

from types import ModuleType

from ..core.registry import Registry
from . import knots, orthogonalise, tall_masks

ENHANCERS: Registry[ModuleType] = Registry(
    "enhancer",
    {
        "orthogonalise": orthogonalise,
        "tall_masks": tall_masks,
        "knots": knots,
    },
)

__all__ = ["ENHANCERS"]
