"""How many modules of the files of `namings` diffusers' own loaders take, by family and label.

A pipeline first brings a file's names into its own form, and then gives each module of the model what bears its
name; what it does not know it drops. The first is done here by `lora_state_dict` of the pipeline, the second by
comparing names: those of diffusers' models, which `tests/lora/keys` holds ours against. Some conversions raise at a
module that they do not know: then the file is tried again with what every trainer has, attention and MLP of the blocks.
"""

import contextlib
import importlib
import io
import logging
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from .named_tensors import tensors_of
from .namings import NamedFile, files_of
from lora_alloy.lora.keys import Family, family, key_map
from lora_alloy.lora.target import Part, Target

PIPELINES = {
    "sd15": "StableDiffusion",
    "sd2": "StableDiffusion",
    "sdxl": "StableDiffusionXL",
    "flux": "Flux",
    "chroma": "Chroma",
    "flux2": "Flux2",
    "klein_4b": "Flux2Klein",
    "klein_9b": "Flux2Klein",
    **dict.fromkeys(("sd3", "sd35_medium", "sd35_large"), "StableDiffusion3"),
    "lumina2": "Lumina2",
    "z_image": "ZImage",
    **dict.fromkeys(("wan_1_3b", "wan_5b", "wan_14b"), "Wan"),
    "qwen_image": "QwenImage",
    "hunyuan_video": "HunyuanVideo",
    **dict.fromkeys(("ltx", "ltx_13b"), "LTX"),
    "ltx2": "LTX2",
    "auraflow": "AuraFlow",
    "mochi": "Mochi",
    "hidream": "HiDreamImage",
    **dict.fromkeys(("kandinsky5_lite", "kandinsky5_pro"), "Kandinsky5T2V"),
    "kandinsky5_image": "Kandinsky5T2I",
}
"""Families whose pipelines load LoRAs."""

_USUAL = re.compile(
    r"diffusion_model\.(double_|single_|transformer_|joint_)?(blocks|layers)\.\d+\."
    r"(?!.*(_mod|modulation|_img$|norm|audio|face|pose))"
)
# What a file that a converter was not written for makes it raise.
_RAISED = (KeyError, ValueError, IndexError, AttributeError, TypeError, RuntimeError)


def read(keys: Iterable[str]) -> dict[str, dict[str, int]]:
    """By family and label, how many modules are taken; families without such a pipeline are left out."""
    logging.disable(logging.CRITICAL)
    diffusers: Any = importlib.import_module("diffusers")
    found: dict[str, dict[str, int]] = {}
    for key in keys:
        pipeline = getattr(diffusers, f"{PIPELINES[key]}Pipeline", None) if key in PIPELINES else None
        if pipeline is not None:
            one = family(key)
            found[key] = {file.label: _count(file, one, pipeline) for file in files_of(one, True)}
    logging.disable(logging.NOTSET)
    return found


def _count(file: NamedFile, family: Family, pipeline: Any) -> int:
    if file.encoder and not hasattr(pipeline, "load_lora_into_text_encoder"):
        return 0
    for taken in (
        file.routes,
        [name for name, route in file.routes.items() if _USUAL.match(route.target.weight)],
    ):
        names = _converted(file, taken, pipeline)
        if names is not None:
            break
    known = key_map(family)
    reached = {
        name
        for name, route in file.routes.items()
        if all(one in (names or ()) for one in _spelled(route.target, known))
    }
    return file.count(reached)


def _spelled(target: Target, known: Any) -> list[str]:
    """What diffusers calls a target: the parts, where it has no name for the whole."""
    names = known.names(target)
    if names is not None and names.diffusers:
        return [names.diffusers]
    wholly: list[Part] = [part for part in known.parts(target.weight) if _is_in(part, target.part)]
    parts = [known.names(Target(target.weight, part)) for part in wholly]
    return [one.diffusers for one in parts if one and one.diffusers] or ["no name"]


def _is_in(part: Part, whole: Part | None) -> bool:
    return whole is None or (
        whole.start <= part.start and part.start + part.length <= whole.start + whole.length
    )


def _converted(file: NamedFile, taken: Iterable[str], pipeline: Any) -> set[str] | None:
    """The modules' names as the pipeline passes them to its models; None if it raises."""
    tensors = tensors_of(file, names=taken)
    settings: dict[str, Any] = {}
    if pipeline.__name__.startswith("StableDiffusionXL"):
        settings["unet_config"] = SimpleNamespace(layers_per_block=2)
    utils: Any = importlib.import_module("diffusers.utils.state_dict_utils")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            made = pipeline.lora_state_dict(tensors, **settings)
            state = made[0] if isinstance(made, tuple) else made
            is_peft = not state or "lora_A" in next(iter(state))
            if file.encoder and not is_peft:
                state = utils.convert_state_dict_to_peft(utils.convert_state_dict_to_diffusers(state))
            elif not is_peft:
                state = utils.convert_unet_state_dict_to_peft(state)
        except _RAISED:
            return None
    return {key.partition(".lora_A")[0] for key in state if ".lora_A" in key}
