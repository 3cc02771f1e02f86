import pytest

from lora_alloy.lora.keys import candidates, detect, family, key_map

RANK = 4
CLIP_LAYER = "text_model_encoder_layers_0_self_attn_q_proj"
T5_BLOCK = "encoder_block_0_layer_0_SelfAttention_q"
SD3 = ("sd35_large", "sd35_medium", "sd3")
KANDINSKY = ("kandinsky5_lite", "kandinsky5_pro", "kandinsky5_image")
WITH_CLIP_L = ("hunyuan_video", "hidream", *KANDINSKY)
T5_ALONE = ("chroma", "ltx", "ltx_13b", "pixart", "mochi")
QWEN25_7B = ("qwen_image", "hunyuan_image", "hunyuan_video_15", *KANDINSKY)


def linear(outputs, inputs):
    return (outputs, RANK), (RANK, inputs)


def pointwise(outputs, inputs):
    return (outputs, RANK, 1, 1), (RANK, inputs, 1, 1)


def keys(families):
    return [one.key for one in families]


def attention(prefix, width, cross):
    """The modules of one transformer of a UNet, as a trainer of attention writes them."""
    block = f"{prefix}.transformer_blocks.0"
    return {
        f"{block}.attn1.to_q": linear(width, width),
        f"{block}.attn2.to_q": linear(width, width),
        f"{block}.attn2.to_k": linear(width, cross),
        f"{block}.attn2.to_v": linear(width, cross),
    }


def flattened(shapes, prefix="lora_unet_"):
    return {prefix + name.replace(".", "_"): shape for name, shape in shapes.items()}


def prefixed(shapes, prefix):
    return {prefix + name: shape for name, shape in shapes.items()}


def flux_blocks(hidden):
    return {
        "transformer_blocks.0.attn.to_q": linear(hidden, hidden),
        "transformer_blocks.0.attn.add_q_proj": linear(hidden, hidden),
        "transformer_blocks.0.ff.net.2": linear(hidden, 4 * hidden),
        "single_transformer_blocks.5.proj_mlp": linear(4 * hidden, hidden),
        "single_transformer_blocks.5.proj_out": linear(hidden, 5 * hidden),
    }


def native_flux_blocks(hidden):
    return {
        "double_blocks.0.img_attn.qkv": linear(3 * hidden, hidden),
        "double_blocks.0.txt_mod.lin": linear(6 * hidden, hidden),
        "single_blocks.37.linear1": linear(7 * hidden, hidden),
        "single_blocks.37.linear2": linear(hidden, 5 * hidden),
    }


@pytest.mark.parametrize(("cross", "key"), [(768, "sd15"), (1024, "sd2")])
@pytest.mark.parametrize("spelled", [flattened, lambda shapes: prefixed(shapes, "unet.")])
def test_cross_attention_tells_sd1_from_sd2(cross, key, spelled):
    shapes = spelled(attention("down_blocks.0.attentions.0", 320, cross))
    assert keys(candidates(shapes)) == [key]


@pytest.mark.parametrize("spelled", [flattened, lambda shapes: prefixed(shapes, "unet.")])
def test_cross_attention_of_2048_is_sdxl(spelled):
    shapes = spelled(attention("down_blocks.1.attentions.0", 640, 2048))
    assert keys(candidates(shapes)) == ["sdxl"]


def test_kohya_sdxl_in_ldm_names_is_sdxl():
    assert keys(candidates(flattened(attention("input_blocks.4.1", 640, 2048)))) == ["sdxl"]


def test_cross_attention_of_a_family_we_lack_is_unknown():
    assert detect(flattened(attention("input_blocks.4.1", 768, 1280))) is None  # the SDXL refiner


def test_a_toy_model_goes_by_its_names():
    sd15 = attention("down_blocks.0.attentions.0", 32, 64) | {
        "down_blocks.0.attentions.0.proj_in": pointwise(32, 32)
    }
    assert keys(candidates(flattened(sd15)))[0] == "sd15"
    sdxl = attention("mid_block.attentions.0", 64, 160) | {
        "mid_block.attentions.0.transformer_blocks.1.attn1.to_q": linear(64, 64)
    }
    assert keys(candidates(prefixed(sdxl, "unet."))) == ["sdxl"]


def test_without_cross_attention_the_projections_tell_sd1_from_sd2():
    name = "unet.down_blocks.0.attentions.0.proj_in"
    assert detect({name: pointwise(320, 320)}) == family("sd15")
    assert detect({name: linear(320, 320)}) == family("sd2")


def test_without_any_evidence_sd1_comes_before_sd2():
    name = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    assert keys(candidates({name: linear(320, 320)})) == ["sd15", "sd2"]


def test_the_depth_of_transformers_tells_sdxl():
    name = "unet.mid_block.attentions.0.transformer_blocks.9.attn1.to_q"
    assert keys(candidates({name: linear(1280, 1280)})) == ["sdxl"]


@pytest.mark.parametrize("hidden", [256, 3072])
@pytest.mark.parametrize(
    "shapes",
    [
        lambda hidden: prefixed(flux_blocks(hidden), "transformer."),
        lambda hidden: prefixed(flux_blocks(hidden), "base_model.model."),
        lambda hidden: flattened(flux_blocks(hidden), "lycoris_"),
        lambda hidden: flattened(native_flux_blocks(hidden)),
        lambda hidden: prefixed(native_flux_blocks(hidden), "diffusion_model."),
    ],
    ids=["diffusers", "peft", "lycoris", "kohya", "comfyui"],
)
def test_flux_shows_its_hidden_width(hidden, shapes):
    found = detect(shapes(hidden))
    assert found is not None and (found.key, found.hidden) == ("flux", hidden)
    known = key_map(found)
    assert known["transformer.transformer_blocks.0.attn.to_v"].target.part.start == 2 * hidden


def test_the_widths_of_flux_2_are_not_flux_1():
    shapes = native_flux_blocks(3072) | {
        "single_blocks.37.linear1": linear(9 * 3072, 3072),
        "single_blocks.37.linear2": linear(3072, 4 * 3072),
    }
    assert detect(prefixed(shapes, "diffusion_model.")) is None


@pytest.mark.parametrize(
    "name",
    [
        "transformer.transformer_blocks.59.attn.to_q",  # Qwen-Image
        "transformer.transformer_blocks.0.img_mlp.net.2",  # Qwen-Image
        "diffusion_model.double_blocks.19.img_attn.qkv",  # HunyuanVideo
        "diffusion_model.distilled_guidance_layer.layers.0.in_layer",  # Chroma
        "transformer.single_transformer_blocks.0.attn.to_qkv_mlp_proj",  # Flux.2
        "diffusion_model.double_stream_modulation_img.lin",  # Flux.2
        "lora_unet_joint_blocks_0_x_block_attn_qkv",  # SD 3
    ],
)
def test_a_block_that_flux_lacks_rules_flux_out(name):
    shapes = prefixed(flux_blocks(3072), "transformer.")
    assert "flux" not in keys(candidates(shapes | {name: linear(3072, 3072)}))


@pytest.mark.parametrize(
    "name",
    [
        "diffusion_model.foo.blocks.3.bar",
        "lora_unet_mystery_layers_0_attention_qkv",
        "unet.down_blocks.0.motion_modules.0.temporal_transformer.proj_in",
    ],
)
def test_an_architecture_we_lack_is_unknown(name):
    assert candidates({name: linear(64, 64)}) == ()


def test_a_file_without_modules_is_of_no_family():
    assert detect({}) is None


def test_a_stray_name_among_many_does_not_matter():
    shapes = {
        f"unet.mid_block.attentions.0.transformer_blocks.{block}.attn1.to_{end}": linear(1280, 1280)
        for block in range(10)
        for end in "qkv"
    }
    assert detect(shapes | {"unet.mystery": linear(4, 4)}) == family("sdxl")
    assert detect({"unet.mystery": linear(4, 4)}) is None


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({f"lora_te_{CLIP_LAYER}": linear(768, 768)}, ["sd15", "sdxl", "flux", *SD3, *WITH_CLIP_L]),
        ({f"lora_te1_{CLIP_LAYER}": linear(768, 768)}, ["sdxl", "flux", *SD3, *WITH_CLIP_L, "sd15"]),
        ({f"lora_te_{CLIP_LAYER}": linear(1024, 1024)}, ["sd2"]),
        ({f"lora_te2_{CLIP_LAYER}": linear(1280, 1280)}, ["sdxl", *SD3, "hidream", "cascade"]),
        ({f"lora_te3_{T5_BLOCK}": linear(4096, 4096)}, ["flux", *SD3, "hidream", *T5_ALONE]),
        (
            {f"lora_te1_{CLIP_LAYER}": linear(768, 768), f"lora_te2_{T5_BLOCK}": linear(4096, 4096)},
            ["flux", *SD3, "hidream"],
        ),
        (
            {f"lora_te2_{CLIP_LAYER}": linear(1280, 1280), f"lora_te3_{T5_BLOCK}": linear(4096, 4096)},
            [*SD3, "hidream"],
        ),
        (
            {"text_encoders.clip_g.transformer.text_projection": linear(1280, 1280)},
            ["sdxl", *SD3, "cascade", "hidream"],
        ),
        ({"lora_te_model_layers_0_self_attn_q_proj": linear(3584, 3584)}, QWEN25_7B),
        ({"lora_te_layers_0_self_attn_q_proj": linear(2048, 2304)}, ["lumina2"]),  # Gemma 2
        (
            {"text_encoders.qwen3_8b.transformer.model.layers.0.self_attn.q_proj": linear(4096, 4096)},
            ["klein_9b"],
        ),
        ({"lora_te4_model_layers_0_self_attn_q_proj": linear(4096, 4096)}, ["hidream"]),
    ],
)
def test_a_file_of_text_encoders_alone_goes_by_names_and_widths(shapes, expected):
    assert set(keys(candidates(shapes))) == set(expected)


def test_of_families_with_an_encoder_the_one_that_usually_names_it_so_comes_first():
    assert detect({f"lora_te_{CLIP_LAYER}": linear(768, 768)}) == family("sd15")
    assert detect({f"lora_te1_{CLIP_LAYER}": linear(768, 768)}) == family("sdxl")


def test_an_encoder_of_another_width_rules_the_family_out():
    shapes = flattened(attention("down_blocks.1.attentions.0", 640, 2048))
    assert keys(candidates(shapes)) == ["sdxl"]
    assert candidates(shapes | {f"lora_te1_{CLIP_LAYER}": linear(1024, 1024)}) == ()


def test_unknown_shapes_say_nothing():
    assert detect({"unet.mid_block.attentions.0.transformer_blocks.9.attn2.to_k": ((), ())}) == family("sdxl")
    found = detect({"transformer.transformer_blocks.0.attn.to_q": ((), ())})
    assert found == family("flux")


@pytest.mark.parametrize("key", ["sd15", "sdxl", "sd2"])
def test_each_unet_knows_itself_by_all_its_names(key):
    cross = {"sd15": 768, "sd2": 1024, "sdxl": 2048}[key]
    shapes = {
        name: linear(8, cross if route.target.weight.endswith(("attn2.to_k", "attn2.to_v")) else 8)
        for name, route in key_map(family(key)).items()
        if not route.target.is_clip
    }
    assert detect(shapes) == family(key)
