"""The libraries' own models, built without memory, name every module as we do."""

from dataclasses import dataclass

import pytest
import torch

from lora_alloy.lora.keys import family, key_map, resolve
from lora_alloy.lora.keys.listing import listed
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


def model(name, **config):
    """The shapes of a model's weights by module, built without memory."""
    diffusers = pytest.importorskip("diffusers")
    kind = getattr(diffusers, name, None)
    if kind is None:
        pytest.skip(f"this version of diffusers has no {name}")
    with torch.device("meta"):
        state = kind(**config).state_dict()
    return {
        key.removesuffix(".weight"): tuple(value.shape)
        for key, value in state.items()
        if key.endswith(".weight")
    }


SD35 = {
    "num_layers": 24,
    "num_attention_heads": 24,
    "caption_projection_dim": 1536,
    "dual_attention_layers": tuple(range(13)),
    "qk_norm": "rms_norm",
    "pooled_projection_dim": 2048,
    "joint_attention_dim": 4096,
}
CASCADE = {
    "block_out_channels": (2048, 2048),
    "block_types_per_layer": (("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),) * 2,
    "clip_image_in_channels": 768,
    "clip_text_in_channels": 1280,
    "clip_text_pooled_in_channels": 1280,
    "conditioning_dim": 2048,
    "down_num_layers_per_block": (8, 24),
    "up_num_layers_per_block": (24, 8),
    "down_blocks_repeat_mappers": (1, 1),
    "up_blocks_repeat_mappers": (1, 1),
    "in_channels": 16,
    "out_channels": 16,
    "num_attention_heads": (32, 32),
    "timestep_conditioning_type": ("sca", "crp"),
    "patch_size": 1,
    "switch_level": (False,),
}
HIDREAM = {
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 16,
    "num_layers": 16,
    "num_single_layers": 32,
    "attention_head_dim": 128,
    "num_attention_heads": 20,
    "caption_channels": [4096, 4096],
    "text_emb_dim": 2048,
    "num_routed_experts": 4,
    "num_activated_experts": 2,
    "axes_dims_rope": (64, 32, 32),
    "max_resolution": (128, 128),
    "llama_layers": [0] * 48,
}
KANDINSKY = {
    "model_dim": 1792,
    "ff_dim": 7168,
    "time_dim": 512,
    "in_visual_dim": 16,
    "out_visual_dim": 16,
    "visual_cond": True,
    "axes_dims": (16, 24, 24),
}
TRANSFORMERS = [
    ("sd35_medium", "SD3Transformer2DModel", SD35),
    ("chroma", "ChromaTransformer2DModel", {}),
    ("flux2", "Flux2Transformer2DModel", {}),
    ("lumina2", "Lumina2Transformer2DModel", {"cap_feat_dim": 2304}),
    ("z_image", "ZImageTransformer2DModel", {}),
    ("wan_14b", "WanTransformer3DModel", {"image_dim": 1280, "added_kv_proj_dim": 5120}),
    ("wan_14b", "WanVACETransformer3DModel", {}),
    ("qwen_image", "QwenImageTransformer2DModel", {}),
    ("hunyuan_video", "HunyuanVideoTransformer3DModel", {}),
    ("hunyuan_video", "HunyuanVideoFramepackTransformer3DModel", {}),
    ("hunyuan_image", "HunyuanImageTransformer2DModel", {}),
    ("hunyuan_video_15", "HunyuanVideo15Transformer3DModel", {}),
    ("ltx", "LTXVideoTransformer3DModel", {}),
    ("ltx2", "LTX2VideoTransformer3DModel", {}),
    ("auraflow", "AuraFlowTransformer2DModel", {}),
    ("pixart", "PixArtTransformer2DModel", {"use_additional_conditions": True}),
    ("mochi", "MochiTransformer3DModel", {}),
    ("cascade", "StableCascadeUNet", CASCADE),
    ("hidream", "HiDreamImageTransformer2DModel", HIDREAM),
    ("kandinsky5_lite", "Kandinsky5Transformer3DModel", KANDINSKY),
    ("ace_step_15", "AceStepTransformer1DModel", {}),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the library's, of its own names
@pytest.mark.parametrize(
    ("key", "name", "config"), TRANSFORMERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_weight_of_the_librarys_model_leads_to_one_of_its_shape(key, name, config):
    one = family(key)
    known = key_map(one)
    sizes = {}
    for listed_one in listed(key):
        for index in listed_one.blocks or (None,):
            path = listed_one.path if index is None else listed_one.path.replace("#", str(index))
            sizes[f"diffusion_model.{path}"] = listed_one.shape
    wrong = {}
    for module, shape in model(name, **config).items():
        route = resolve(f"transformer.{module}", known)
        expected = list(sizes[route.target.weight]) if route else []
        if route and route.target.part:
            expected[0] = route.target.part.length
        if tuple(expected) != shape:
            wrong[module] = (shape, route)
    assert wrong == {}
