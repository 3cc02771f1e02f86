"""What ComfyUI's own classes are told of the models we build: the released ones, to be made smaller at will."""

from collections.abc import Iterable, Mapping

# Of Stable Diffusion's UNets; sizes are the model's own.
UNET: Mapping[str, object] = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "use_spatial_transformer": True,
    "legacy": False,
    "use_checkpoint": False,
    "use_temporal_attention": False,
    "use_temporal_resblock": False,
}
FLUX: Mapping[str, object] = {
    "image_model": "flux",
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "vec_in_dim": 768,
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 19,
    "depth_single_blocks": 38,
    "axes_dim": [16, 56, 56],
    "theta": 10000,
    "qkv_bias": True,
    "guidance_embed": True,
    "txt_ids_dims": [],
}


def flux_settings(config: Mapping[str, object], known: Iterable[str]) -> dict[str, object]:
    """Only the settings that this version of ComfyUI knows: they come and go."""
    return {name: value for name, value in config.items() if name in {*known, "image_model"}}
