"""Which trainer wrote a file, guessed from its header and its names; nothing is decided by it.

Headers are hostile text: a guess quotes at most a short piece of one (`spec/comfyui-contract.md` §3.5).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .headers import cut, parsed

QUOTED = 60
# Words for the base model that only musubi-tuner uses: its models are for video, and the newest for images.
_MUSUBI = (
    "hunyuan_video",
    "wan",
    "framepack",
    "flux_kontext",
    "flux_2",
    "qwen_image",
    "z_image",
    "kandinsky5",
)
_BY_NAME = (
    ("lora_transformer_", "OneTrainer"),
    ("lycoris_", "LyCORIS or SimpleTuner"),
    ("base_model.model.", "PEFT, saved as it is"),
    ("lora_unet_", "kohya's sd-scripts, or one that writes its names"),
    ("lora_te", "kohya's sd-scripts, or one that writes its names"),
    ("diffusion_model.", "ai-toolkit, or one that writes ComfyUI's names"),
    ("unet.", "diffusers"),
    ("transformer.", "diffusers"),
    ("text_encoder", "diffusers"),
)


@dataclass(frozen=True)
class Trainer:
    """A guess at the program that wrote a file, and what speaks for it."""

    name: str
    evidence: str


def guess_trainer(metadata: Mapping[str, str], module_names: Iterable[str]) -> Trainer | None:
    """The program that wrote a file, or None if neither its header nor its names tell.

    Args:
        metadata: the header's own strings.
        module_names: as in the file.
    """
    return _from_header(metadata) or _from_names(module_names)


def _from_header(metadata: Mapping[str, str]) -> Trainer | None:
    if "lora_alloy.recipe" in metadata:
        return _told("LoRA Alloy", metadata, "tool" if "tool" in metadata else "lora_alloy.recipe")
    software = parsed(metadata.get("software", ""))
    if isinstance(software, dict) and software.get("name") == "ai-toolkit":
        return _told("ai-toolkit", metadata, "software")
    for key in ("ot_branch", "ot_revision", "ot_config"):
        if key in metadata:
            return _told("OneTrainer", metadata, key)
    module = metadata.get("ss_network_module", "")
    if module.startswith("lycoris"):
        return _told("kohya's sd-scripts with LyCORIS", metadata, "ss_network_module")
    if module and metadata.get("ss_base_model_version", "").startswith(_MUSUBI):
        return _told("musubi-tuner", metadata, "ss_base_model_version")
    for key in ("ss_network_module", "ss_sd_model_name", "ss_output_name"):
        if key in metadata:
            return _told("kohya's sd-scripts", metadata, key)
    if "lora_adapter_metadata" in metadata:
        return Trainer("diffusers with PEFT", "`lora_adapter_metadata` stands in the header")
    return None


def _told(name: str, metadata: Mapping[str, str], key: str) -> Trainer:
    return Trainer(name, f"`{key}` in the header is `{cut(metadata[key], QUOTED)}`")


def _from_names(module_names: Iterable[str]) -> Trainer | None:
    for name in module_names:
        for prefix, trainer in _BY_NAME:
            if name.startswith(prefix):
                return Trainer(trainer, f"the names begin with `{prefix}`, and the header does not say")
    return None
