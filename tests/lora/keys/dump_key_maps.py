"""A script: write the key maps that ComfyUI gives the full-size models, as JSON.

Run as `python dump_key_maps.py TREE OUT` with `TREE` a ComfyUI checkout. The models stand on the `meta`
device, without memory. It is a process of its own because two versions of ComfyUI do not fit in one.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from lora_alloy_testing.comfy_configs import FLUX, UNET, flux_settings

_UNET = {**UNET, "model_channels": 320}
_SD = _UNET | {
    "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 2, 4, 4],
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "transformer_depth_middle": 1,
    "num_heads": 8,
    "adm_in_channels": None,
}
_SDXL = _UNET | {
    "num_res_blocks": [2, 2, 2],
    "channel_mult": [1, 2, 4],
    "transformer_depth": [0, 0, 2, 2, 10, 10],
    "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
    "transformer_depth_middle": 10,
    "context_dim": 2048,
    "use_linear_in_transformer": True,
    "num_classes": "sequential",
    "num_head_channels": 64,
    "adm_in_channels": 2816,
}


def _models() -> dict[str, tuple[Any, Any]]:
    """By family, the configuration of the model and the class of its text encoders."""
    supported = importlib.import_module("comfy.supported_models")
    flux = importlib.import_module("comfy.text_encoders.flux")
    fields = importlib.import_module("comfy.ldm.flux.model").FluxParams.__dataclass_fields__
    return {
        "sd15": (
            supported.SD15(_SD | {"context_dim": 768, "use_linear_in_transformer": False}),
            importlib.import_module("comfy.sd1_clip").SD1ClipModel,
        ),
        "sd2": (
            supported.SD20(_SD | {"context_dim": 1024, "use_linear_in_transformer": True}),
            importlib.import_module("comfy.text_encoders.sd2_clip").SD2ClipModel,
        ),
        "sdxl": (supported.SDXL(dict(_SDXL)), importlib.import_module("comfy.sdxl_clip").SDXLClipModel),
        "flux": (supported.Flux(flux_settings(FLUX, fields)), flux.flux_clip(dtype_t5=torch.float32)),
    }


def _routes(key_map: dict[str, Any], state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """By name, the key, its part `(axis, start, length)` or None, and whether a function is applied."""
    found = {}
    for name, route in key_map.items():
        key, part, function = ((route, None, None) if isinstance(route, str) else (*route, None))[:3]
        if key in state:
            found[name] = (prefix + key, part, function is not None)
    return found


def main(tree: Path, out: Path) -> None:
    """Import ComfyUI from `tree` and write `{family: {name: route}}` to `out`."""
    sys.path.insert(0, str(tree))
    sys.argv = ["main.py", "--cpu"]
    importlib.import_module("comfy.options").enable_args_parsing()
    lora = importlib.import_module("comfy.lora")
    found = {}
    with torch.inference_mode():
        for family, (config, encoder) in _models().items():
            config.set_inference_dtype(torch.float32, None)
            model = config.get_model({}, "", device="meta")
            clip = encoder(device="meta", dtype=torch.float32)
            found[family] = _routes(lora.model_lora_keys_unet(model, {}), model.state_dict(), "") | _routes(
                lora.model_lora_keys_clip(clip, {}), clip.state_dict(), "text_encoders."
            )
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
