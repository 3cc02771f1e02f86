"""Output nodes that write what a workflow arrived at, so that a test can compare it."""

from pathlib import Path

import comfy.lora
import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.utils
import folder_paths
import torch
from safetensors.torch import save_file
from torch import Tensor

GROUPS = ("base", "patched", "loaded")


def _output_path(name: str) -> Path:
    if Path(name).name != name:
        raise ValueError(f"'{name}' is not a plain file name.")
    return Path(folder_paths.get_output_directory()) / f"{name}.safetensors"


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()


def _patched_weights(patcher: comfy.model_patcher.ModelPatcher, prefix: str) -> dict[str, Tensor]:
    """Each patched weight thrice: as built, as its patches compute it, and as the loaded model holds it."""
    comfy.model_management.load_models_gpu([patcher], force_full_load=True)
    found = {}
    for key, patches in patcher.patches.items():
        held = comfy.utils.get_attr(patcher.model, key)
        base = patcher.backup[key].weight if key in patcher.backup else held
        tensors = (_copy(base), comfy.lora.calculate_weight(patches, _copy(base), key), _copy(held))
        for group, tensor in zip(GROUPS, tensors, strict=True):
            found[f"{group}/{prefix}{key}"] = tensor.contiguous()
    return found


class AlloyTestWeights:
    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, tuple]]:  # noqa: N802
        return {"required": {"name": ("STRING", {})}, "optional": {"model": ("MODEL",), "clip": ("CLIP",)}}

    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "write"
    CATEGORY = "alloy test"

    def write(
        self,
        name: str,
        model: comfy.model_patcher.ModelPatcher | None = None,
        clip: comfy.sd.CLIP | None = None,
    ) -> dict[str, dict[str, list[str]]]:
        found = _patched_weights(model, "") if model is not None else {}
        if clip is not None:
            found |= _patched_weights(clip.patcher, "text_encoders.")
        save_file(found, _output_path(name))
        return {"ui": {"text": [f"{len(found) // len(GROUPS)} patched weights"]}}


class AlloyTestLatent:
    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, tuple]]:  # noqa: N802
        return {"required": {"samples": ("LATENT",), "name": ("STRING", {})}}

    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "write"
    CATEGORY = "alloy test"

    def write(self, samples: dict[str, Tensor], name: str) -> dict[str, dict[str, list[str]]]:
        save_file({"samples": _copy(samples["samples"])}, _output_path(name))
        return {"ui": {"text": [str(tuple(samples["samples"].shape))]}}


class AlloyTestPatches:
    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, tuple]]:  # noqa: N802
        return {"required": {"model": ("MODEL",)}}

    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "count"
    CATEGORY = "alloy test"

    def count(self, model: comfy.model_patcher.ModelPatcher) -> dict[str, dict[str, list[object]]]:
        """The kinds of a model's patches, and the bytes that their tensors hold."""
        kinds, held = set(), 0
        for patches in model.patches.values():
            for _, patch, *_ in patches:
                kind, tensors = (
                    (patch[0], patch[1]) if isinstance(patch, tuple) else (patch.name, patch.weights)
                )
                kinds.add(kind)
                held += sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
        return {"ui": {"kinds": sorted(kinds), "bytes": [held]}}
