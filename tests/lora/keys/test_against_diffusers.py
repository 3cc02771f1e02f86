"""The libraries' own models, built without memory, name every module as we do."""

from dataclasses import dataclass

import pytest
import torch

from lora_alloy.lora.keys import family, key_map, resolve
from lora_alloy.lora.keys.table import names_of

WITH_FACTORS = (torch.nn.Linear, torch.nn.Conv2d)
SDXL = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "use_linear_projection": True,
}


@dataclass(frozen=True)
class Modules:
    """A model's module names: of those with LoRA's factors, and of all that hold a weight."""

    factored: frozenset[str]
    weighted: frozenset[str]


def modules_of(model):
    named = dict(model.named_modules())
    return Modules(
        frozenset(name for name, module in named.items() if isinstance(module, WITH_FACTORS)),
        frozenset(name.removesuffix(".weight") for name in model.state_dict() if name.endswith(".weight")),
    )


def unet(**config):
    diffusers = pytest.importorskip("diffusers")
    with torch.device("meta"):
        return modules_of(diffusers.UNet2DConditionModel(**config))


def flux():
    diffusers = pytest.importorskip("diffusers")
    with torch.device("meta"):
        return modules_of(diffusers.FluxTransformer2DModel(guidance_embeds=True))


def clip(layers):
    transformers = pytest.importorskip("transformers")
    config = transformers.CLIPTextConfig(num_hidden_layers=layers)
    with torch.device("meta"):
        return modules_of(transformers.CLIPTextModelWithProjection(config))


def t5():
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(num_layers=24, feed_forward_proj="gated-gelu")
    with torch.device("meta"):
        return modules_of(transformers.T5EncoderModel(config))


CASES = {
    "sd15": ("sd15", "unet.", lambda: unet(cross_attention_dim=768)),
    "sd2": ("sd2", "unet.", lambda: unet(cross_attention_dim=1024, use_linear_projection=True)),
    "sdxl": ("sdxl", "unet.", lambda: unet(**SDXL)),
    "flux": ("flux", "transformer.", flux),
    "clip-l": ("sdxl", "text_encoder.", lambda: clip(12)),
    "clip-g": ("sdxl", "text_encoder_2.", lambda: clip(32)),
    "t5": ("flux", "text_encoder_2.", t5),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def case(request):
    key, prefix, build = request.param
    return key, prefix, build()


def test_every_linear_map_and_convolution_is_covered(case):
    key, prefix, modules = case
    known = key_map(family(key))
    assert modules.factored and [name for name in modules.factored if prefix + name not in known] == []


def test_every_module_with_a_weight_is_covered_and_no_other_is_named(case):
    key, prefix, modules = case
    names = [names.diffusers for names in names_of(family(key)).values() if names.diffusers]
    ours = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    tied = {"encoder.embed_tokens"}  # the same tensor as `shared` of T5
    assert ours == modules.weighted - tied


def test_flattened_names_of_all_modules_resolve_alike(case):
    key, prefix, modules = case
    known = key_map(family(key))
    numbered = {"text_encoder.": "lora_te1_", "text_encoder_2.": "lora_te2_"}
    flat_prefix = numbered.get(prefix, "lycoris_")
    for name in modules.factored:
        assert resolve(flat_prefix + name.replace(".", "_"), known) == known[prefix + name]
