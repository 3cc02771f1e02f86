"""Base models out of files: whatever a checkpoint calls a weight, it is the one that a LoRA's name leads to."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lora_alloy.core.errors import FileError
from lora_alloy.lora.base import open_base
from lora_alloy.lora.keys import resolve
from lora_alloy.lora.target import Part, Route, Target
from lora_alloy_testing.base_formats import noise
from lora_alloy_testing.flux import PARTS, SIZES, SWAPPED, WHOLE, row_parts
from lora_alloy_testing.small_loras import write_small

QUERY = "input_blocks.4.1.transformer_blocks.0.attn2.to_k"
UNET = {
    f"{QUERY}.weight": noise(64, 2048),
    "input_blocks.4.1.proj_in.weight": noise(64, 64),
    "input_blocks.0.0.weight": noise(32, 4, 3, 3),
    "input_blocks.0.0.bias": noise(32),
}
LAYER = "encoder.layers.3."
CLIP_L = {f"text_model.{LAYER}self_attn.q_proj.weight": noise(768, 768)}
BLOCK = "transformer.resblocks.3."
CLIP_G = {
    f"{BLOCK}attn.in_proj_weight": noise(60, 20),
    f"{BLOCK}attn.in_proj_bias": noise(60),
    f"{BLOCK}attn.out_proj.weight": noise(20, 20, seed=1),
    f"{BLOCK}mlp.c_fc.weight": noise(80, 20),
    f"{BLOCK}ln_1.weight": noise(20),
    "text_projection": noise(20, 24),
    "ln_final.weight": noise(20),
    "positional_embedding": noise(77, 20),
}
MODEL, ENCODERS = "diffusion_model.", "text_encoders."


def written(path: Path, tensors: dict[str, Tensor], prefix: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({prefix + name: value.contiguous() for name, value in tensors.items()}, path)
    return path


def named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


@pytest.mark.parametrize("prefix", ["model.diffusion_model.", "diffusion_model.", ""])
def test_a_model_is_read_with_any_prefix_or_none(tmp_path, prefix):
    base = open_base(written(tmp_path / "base.safetensors", UNET, prefix))
    assert base.shapes[f"{MODEL}{QUERY}"] == (64, 2048)
    torch.testing.assert_close(base.base(f"{MODEL}{QUERY}"), UNET[f"{QUERY}.weight"])
    torch.testing.assert_close(base.base(f"{MODEL}input_blocks.0.0"), UNET["input_blocks.0.0.weight"])
    torch.testing.assert_close(base.base(f"{MODEL}input_blocks.0.0.bias"), UNET["input_blocks.0.0.bias"])
    assert base.base(f"{MODEL}input_blocks.9.9") is None
    for name in (
        f"lora_unet_{QUERY.replace('.', '_')}",
        f"unet.{DIFFUSERS}",
        f"oft_unet_{QUERY.replace('.', '_')}",
    ):
        assert resolve(name, base.known) == Route(Target(f"{MODEL}{QUERY}")), name


DIFFUSERS = "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k"


def test_the_text_encoders_of_sdxl_are_found_and_the_fused_one_is_cut(tmp_path):
    tensors = named(UNET, "model.diffusion_model.") | named(CLIP_L, "conditioner.embedders.0.transformer.")
    tensors |= named(CLIP_G, "conditioner.embedders.1.model.") | {"first_stage_model.x.weight": noise(3, 3)}
    base = open_base(written(tmp_path / "xl.safetensors", tensors))
    small, large = f"{ENCODERS}clip_l.transformer.", f"{ENCODERS}clip_g.transformer."
    torch.testing.assert_close(base.base(f"{small}text_model.{LAYER}self_attn.q_proj"), *CLIP_L.values())
    for place, name in enumerate("qkv"):
        rows = slice(20 * place, 20 * place + 20)
        weight = f"{large}text_model.{LAYER}self_attn.{name}_proj"
        assert base.shapes[weight] == (20, 20)
        torch.testing.assert_close(base.base(weight), CLIP_G[f"{BLOCK}attn.in_proj_weight"][rows])
        torch.testing.assert_close(base.base(f"{weight}.bias"), CLIP_G[f"{BLOCK}attn.in_proj_bias"][rows])
    for ours, theirs in {
        "self_attn.out_proj": "attn.out_proj",
        "mlp.fc1": "mlp.c_fc",
        "layer_norm1": "ln_1",
    }.items():
        found = base.base(f"{large}text_model.{LAYER}{ours}")
        torch.testing.assert_close(found, CLIP_G[f"{BLOCK}{theirs}.weight"])
    torch.testing.assert_close(base.base(f"{large}text_projection"), CLIP_G["text_projection"].T)
    positions = base.base(f"{large}text_model.embeddings.position_embedding")
    torch.testing.assert_close(positions, CLIP_G["positional_embedding"])
    assert not any("first_stage" in weight for weight in base.shapes)
    assert resolve("lora_te2_text_model_encoder_layers_3_self_attn_k_proj", base.known)


@pytest.mark.parametrize("inner", ["text_model.", ""])
def test_the_text_encoder_of_sd15_is_found(tmp_path, inner):
    model = {"input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight": noise(32, 768)}
    tensors = named(model, "model.diffusion_model.")
    weight = noise(768, 768)
    tensors[f"cond_stage_model.transformer.{inner}{LAYER}mlp.fc2.weight"] = weight
    base = open_base(written(tmp_path / "sd.safetensors", tensors))
    found = base.base(f"{ENCODERS}clip_l.transformer.text_model.{LAYER}mlp.fc2")
    torch.testing.assert_close(found, weight)


def test_a_text_encoder_that_the_file_lacks_may_still_be_named(tmp_path):
    base = open_base(written(tmp_path / "base.safetensors", UNET))
    route = resolve("lora_te1_text_model_encoder_layers_3_mlp_fc1", base.known)
    assert route == Route(Target(f"{ENCODERS}clip_l.transformer.text_model.{LAYER}mlp.fc1"))
    assert base.base(route.target.weight) is None
    assert resolve("lora_unet_middle_block_1_proj_in", base.known) is None, "the model lacks that weight"


def flux() -> dict[str, Tensor]:
    return {name: noise(32 * outputs, 32 * inputs) for name, (outputs, inputs) in SIZES.items()}


def test_a_native_flux_is_read_whole(tmp_path):
    tensors = flux()
    native = {f"{name}.weight": value for name, value in tensors.items()}
    native["double_blocks.0.img_attn.norm.query_norm.scale"] = noise(8)
    base = open_base(written(tmp_path / "flux.safetensors", native))
    for name, value in tensors.items():
        torch.testing.assert_close(base.base(MODEL + name), value)
    assert base.shapes[f"{MODEL}double_blocks.0.img_attn.norm.query_norm"] == (8,)
    route = resolve("transformer.transformer_blocks.0.attn.to_k", base.known)
    assert route == Route(Target(f"{MODEL}double_blocks.0.img_attn.qkv", Part(0, 32, 32)))


def split_flux() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights by native name, and the same as diffusers keeps them."""
    tensors, split = flux(), {}
    for name, value in tensors.items():
        for part, rows in row_parts(name, len(value)).items():
            split[f"{part}.weight"] = value[rows]
        if name in WHOLE:
            split[f"{WHOLE[name]}.weight"] = torch.cat(value.chunk(2)[::-1]) if name == SWAPPED else value
    return tensors, split


@pytest.mark.parametrize("kind", ["a file", "a folder", "shards", "with a half-precision copy"])
def test_the_parts_of_a_diffusers_flux_are_joined_again(tmp_path, kind):
    tensors, split = split_flux()
    path = tmp_path / "flux"
    if kind == "a file":
        path = written(tmp_path / "flux.safetensors", split)
    elif kind == "shards":
        names = sorted(split)
        for number, some in enumerate((names[::2], names[1::2]), 1):
            shard = path / "transformer" / f"diffusion_pytorch_model-0000{number}-of-00002.safetensors"
            written(shard, {name: split[name] for name in some})
    else:
        written(path / "transformer" / "diffusion_pytorch_model.safetensors", split)
        clip = {f"text_model.{LAYER}mlp.fc1.weight": noise(12, 8)}
        written(path / "text_encoder" / "model.safetensors", clip)
        if kind.startswith("with"):
            zeros = {name: torch.zeros_like(value).half() for name, value in split.items()}
            written(path / "transformer" / "diffusion_pytorch_model.fp16.safetensors", zeros)
    base = open_base(path)
    assert len(PARTS) == 3
    for name, value in tensors.items():
        torch.testing.assert_close(base.base(MODEL + name), value)
    if path.is_dir() and kind != "shards":
        assert base.base(f"{ENCODERS}clip_l.transformer.text_model.{LAYER}mlp.fc1").shape == (12, 8)


@pytest.mark.parametrize("scale", ["none", "scale_weight", "weight_scale", "a row"])
def test_fp8_weights_are_multiplied_by_their_stored_scale(tmp_path, scale):
    stored = noise(64, 2048).to(torch.float8_e4m3fn)
    tensors = named(UNET, "model.diffusion_model.")
    name = f"model.diffusion_model.{QUERY}"
    tensors[f"{name}.weight"] = stored
    factor = torch.ones(1)
    if scale == "a row":
        factor = noise(64, 1).abs()
        tensors[f"{name}.weight_scale"] = factor
    elif scale != "none":
        factor = torch.tensor(0.125)
        tensors[f"{name}.{scale}"] = factor
        tensors["model.diffusion_model.scaled_fp8"] = torch.zeros(2).to(torch.float8_e4m3fn)
    base = open_base(written(tmp_path / "base.safetensors", tensors))
    torch.testing.assert_close(base.base(f"{MODEL}{QUERY}"), stored.float() * factor)


def test_packed_weights_are_known_by_name_and_read_as_nothing(tmp_path):
    tensors = named(UNET, "diffusion_model.")
    tensors[f"diffusion_model.{QUERY}.weight"] = torch.zeros(64 * 1024, 1, dtype=torch.uint8)
    tensors["diffusion_model.input_blocks.4.1.proj_in.weight"] = noise(64, 64).to(torch.float8_e4m3fn)
    tensors["diffusion_model.input_blocks.4.1.proj_in.weight_scale"] = noise(64, 4).to(torch.float8_e4m3fn)
    tensors["diffusion_model.input_blocks.4.1.proj_in.weight_scale_2"] = noise(1)
    base = open_base(written(tmp_path / "base.safetensors", tensors))
    assert f"{MODEL}{QUERY}" not in base.shapes
    assert base.known[f"{MODEL}{QUERY}"] == Route(Target(f"{MODEL}{QUERY}"))
    assert base.base(f"{MODEL}{QUERY}") is None
    assert base.base(f"{MODEL}input_blocks.4.1.proj_in") is None


def test_an_unknown_architecture_goes_by_its_own_names(tmp_path):
    weight = noise(12, 8)
    base = open_base(written(tmp_path / "foo.safetensors", {"foo.blocks.3.bar.weight": weight}))
    target = Target(f"{MODEL}foo.blocks.3.bar")
    for name in (
        "diffusion_model.foo.blocks.3.bar",
        "transformer.foo.blocks.3.bar",
        "lora_unet_foo_blocks_3_bar",
    ):
        assert resolve(name, base.known) == Route(target)
    torch.testing.assert_close(base.base(target.weight), weight)


def test_what_is_no_base_model_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(FileError, match="is a LoRA, not a base model"):
        open_base(write_small(tmp_path / "ink.safetensors"))
    with pytest.raises(FileError, match="holds no weights of a model"):
        open_base(written(tmp_path / "vae.safetensors", {"first_stage_model.x.weight": noise(3, 3)}))
    with pytest.raises(FileError, match="GGUF"):
        open_base(tmp_path / "flux.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="holds no safetensors file"):
        open_base(tmp_path / "empty")
    for name in ("one", "two"):
        written(tmp_path / "many" / f"{name}.safetensors", UNET)
    with pytest.raises(FileError, match=r"several models, `one.safetensors`, `two.safetensors`"):
        open_base(tmp_path / "many")


def test_a_base_is_read_again_after_its_memory_was_given_back(tmp_path):
    base = open_base(written(tmp_path / "base.safetensors", UNET))
    first = base.base(f"{MODEL}{QUERY}")
    second = base.base(f"{MODEL}{QUERY}")
    torch.testing.assert_close(first, second)
    assert base.label == "base.safetensors"
