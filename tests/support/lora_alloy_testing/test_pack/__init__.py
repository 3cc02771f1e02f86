"""A ComfyUI node pack that only the tests install: tiny real models, and outputs that can be compared.

Nodes (all in the category `alloy test`):

- `AlloyTestModel(family, seed) -> MODEL, CLIP`: a tiny model of ComfyUI's own classes; see `models.py`.
- `AlloyTestWeights(name, model?, clip?)`: writes every patched weight to `<output>/<name>.safetensors`.
- `AlloyTestPatches(model)`: shows the kinds of its patches and the bytes they hold.
- `AlloyTestLatent(samples, name)`: writes a latent's samples to `<output>/<name>.safetensors`.
"""

from .dumps import AlloyTestLatent, AlloyTestPatches, AlloyTestWeights
from .models import AlloyTestModel

__all__ = ["NODE_CLASS_MAPPINGS"]

NODE_CLASS_MAPPINGS = {
    "AlloyTestModel": AlloyTestModel,
    "AlloyTestWeights": AlloyTestWeights,
    "AlloyTestLatent": AlloyTestLatent,
    "AlloyTestPatches": AlloyTestPatches,
}
