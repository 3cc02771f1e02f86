from lora_alloy_testing.comfy_fixtures import comfy_pack, comfy_server, comfy_tree, tiny_models

__all__ = ["comfy_pack", "comfy_server", "comfy_tree", "tiny_models"]
