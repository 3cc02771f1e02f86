"""Independent readers: files we save load in diffusers and PEFT, and add the same deltas there.

The models are diffusers' own classes at toy sizes; the readers are those its pipelines use.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lora_alloy.api import Merged, load, merge
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import Factors, difference, entry_of, noise, write_lora

pytestmark = pytest.mark.filterwarnings("ignore")  # they are other people's
PLAIN = Recipe(method="weighted_sum", auto_strength=False)


def peer(name: str) -> ModuleType:
    """Another library, or a skip that says what it would have read."""
    with catch_warnings():
        simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed: nobody else reads our files here")


peer("peft")
diffusers = peer("diffusers")


@pytest.fixture(scope="module")
def models() -> Mapping[str, torch.nn.Module]:
    torch.manual_seed(0)
    common = {"sample_size": 8, "layers_per_block": 2, "norm_num_groups": 4}
    sd15 = diffusers.UNet2DConditionModel(
        **common,
        block_out_channels=(8, 16, 16, 16),
        cross_attention_dim=768,
        attention_head_dim=4,
        down_block_types=(*("CrossAttnDownBlock2D",) * 3, "DownBlock2D"),
        up_block_types=("UpBlock2D", *("CrossAttnUpBlock2D",) * 3),
    )
    sdxl = diffusers.UNet2DConditionModel(
        **common,
        block_out_channels=(8, 16, 16),
        cross_attention_dim=2048,
        attention_head_dim=4,
        use_linear_projection=True,
        transformer_layers_per_block=(1, 2, 3),
        down_block_types=("DownBlock2D", *("CrossAttnDownBlock2D",) * 2),
        up_block_types=(*("CrossAttnUpBlock2D",) * 2, "UpBlock2D"),
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=80,
    )
    flux = diffusers.FluxTransformer2DModel(
        in_channels=4,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=20,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
    return {"sd15": sd15, "sdxl": sdxl, "flux": flux}


PIPELINES = {"sd15": "StableDiffusionPipeline", "sdxl": "StableDiffusionXLPipeline", "flux": "FluxPipeline"}
# Attention, feed-forward, projections, convolutions; what trainers put LoRAs on.
TRAINED = ("to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out", "conv1")
TRAINED_FLUX = (
    *("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
    *("net.0.proj", "net.2", "norm1.linear", "norm.linear", "proj_mlp", "proj_out", "norm_out.linear"),
)


def shapes(model: torch.nn.Module, family: str) -> dict[str, tuple[int, ...]]:
    """Weights that LoRAs are trained on, by diffusers' own names: one way down, the middle, one way up."""
    endings = TRAINED_FLUX if family == "flux" else TRAINED
    places = ("",) if family == "flux" else ("down_blocks.1.", "mid_block.", "up_blocks.1.")
    return {
        name.removesuffix(".weight"): tuple(value.shape)
        for name, value in model.named_parameters()
        if name.removesuffix(".weight").endswith(endings) and value.ndim > 1 and name.startswith(places)
    }


def two_loras(
    model: torch.nn.Module, family: str, folder: Path, without: tuple[str, ...] = ()
) -> tuple[Merged, dict[str, np.ndarray]]:
    """A merge of two LoRAs, and what it must add to each of diffusers' weights."""
    prefix = "transformer." if family == "flux" else "unet."
    on = {name: shape for name, shape in shapes(model, family).items() if not name.startswith(without or "-")}
    loras: list[dict[str, Factors]] = [
        {
            name: noise(shape, 3, seed=1000 * seed + n, alpha=alpha)
            for n, (name, shape) in enumerate(on.items())
        }
        for seed, alpha in ((1, 1.5), (2, None))
    ]
    dotted = {prefix + name: one for name, one in loras[1].items()}
    folder.mkdir()
    if family == "flux":
        first = write_lora(folder / "a.safetensors", {prefix + name: one for name, one in loras[0].items()})
    else:
        flat = {"lora_unet_" + name.replace(".", "_"): one for name, one in loras[0].items()}
        first = write_lora(folder / "a.safetensors", flat)
    second = write_lora(folder / "b.safetensors", dotted, "peft")
    result = merge([entry_of(first, 0.8), entry_of(second, -0.5)], PLAIN)
    return result, {name: 0.8 * one.delta - 0.5 * loras[1][name].delta for name, one in loras[0].items()}


def added(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """What PEFT's layers in a model add to each weight."""
    return {
        name: module.get_delta_weight(next(iter(module.lora_A))).detach().double().numpy()
        for name, module in model.named_modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "lora_A")
    }


def agrees(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert sorted(found) == sorted(expected)
    for name, delta in expected.items():
        assert difference(found[name].reshape(delta.shape), delta) < 1e-5, name


@pytest.fixture(autouse=True)
def without_adapters(models) -> Iterator[None]:
    yield
    for model in models.values():
        if getattr(model, "_hf_peft_config_loaded", False):
            model.unload_lora()


@pytest.mark.parametrize("family", PIPELINES)
def test_a_model_loads_the_saved_file_as_an_adapter_and_adds_the_same(family, models, tmp_path):
    model = models[family]
    result, expected = two_loras(model, family, tmp_path / "in")
    assert result.plan.family == family
    result.save(tmp_path / "out", naming="diffusers")
    prefix = "transformer" if family == "flux" else "unet"
    model.load_lora_adapter(load_file(tmp_path / "out.safetensors"), prefix=prefix)
    agrees(added(model), expected)


@pytest.mark.parametrize("family", PIPELINES)
@pytest.mark.parametrize("naming", ["diffusers", "kohya"])
def test_the_pipelines_own_loader_reads_the_file_and_adds_the_same(family, naming, models, tmp_path):
    """For kohya's naming that is diffusers' own conversion of it.

    Of Flux it knows the released width alone where it splits `linear1`, and leaves out the last modulation.
    """
    model, pipeline = models[family], getattr(diffusers, PIPELINES[family])
    is_limited = (family, naming) == ("flux", "kohya")
    without = ("single_transformer_blocks.", "norm_out.", "proj_out") if is_limited else ()
    result, expected = two_loras(model, family, tmp_path / "in", without)
    result.save(tmp_path / "out", naming=naming)
    how: dict[str, object] = {"weight_name": "out.safetensors", "local_files_only": True}
    if family == "flux":
        state, alphas = pipeline.lora_state_dict(str(tmp_path), return_alphas=True, **how)
        pipeline.load_lora_into_transformer(state, alphas, model)
    else:
        if family == "sdxl":
            how["unet_config"] = model.config
        state, alphas = pipeline.lora_state_dict(str(tmp_path), **how)
        pipeline.load_lora_into_unet(state, alphas, model)
    agrees(added(model), expected)


@pytest.mark.parametrize("family", PIPELINES)
def test_fusing_the_saved_file_changes_the_weights_by_the_merge(family, models, tmp_path):
    model = models[family]
    result, expected = two_loras(model, family, tmp_path / "in")
    result.save(tmp_path / "out", naming="diffusers")
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    model.load_lora_adapter(
        load_file(tmp_path / "out.safetensors"), prefix="transformer" if family == "flux" else "unet"
    )
    model.fuse_lora()
    after = {
        name.replace(".base_layer", ""): value.detach().clone() for name, value in model.named_parameters()
    }
    model.unfuse_lora()
    for name, value in before.items():
        delta = (after[name] - value).double().numpy()
        weight = name.removesuffix(".weight")
        if name.endswith(".weight") and weight in expected:
            assert difference(delta, expected[weight].reshape(delta.shape)) < 1e-4, name
        else:
            assert not delta.any(), name


def test_the_hidden_width_of_a_toy_flux_is_read_from_its_file(models, tmp_path):
    result, _ = two_loras(models["flux"], "flux", tmp_path / "in")
    assert result.stack.family is not None
    assert result.stack.family.hidden == 32
    result.save(tmp_path / "out", naming="kohya")
    assert load(tmp_path / "out.safetensors").families[0].hidden == 32


def test_what_diffusers_saves_is_what_we_read(models, tmp_path):
    """The way back: an adapter made and saved by diffusers."""
    from peft import LoraConfig

    model = models["sd15"]
    model.add_adapter(
        LoraConfig(r=3, lora_alpha=3, target_modules=["to_q", "to_k", "conv1"], init_lora_weights=False)
    )
    expected = added(model)
    model.save_lora_adapter(str(tmp_path))
    (path,) = tmp_path.glob("*.safetensors")
    result = merge([path])
    assert result.plan.family == "sd15"
    assert len(result) == len(expected)
    result.save(tmp_path / "again", naming="diffusers")
    model.unload_lora()
    model.load_lora_adapter(load_file(tmp_path / "again.safetensors"), prefix="unet")
    agrees(added(model), expected)


def test_a_text_encoder_loads_its_part_of_the_file_and_adds_the_same(tmp_path):
    transformers = peer("transformers")
    config = transformers.CLIPTextConfig(
        vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    encoder = transformers.CLIPTextModel(config)
    names = [
        name.removesuffix(".weight").removeprefix("text_model.")
        for name, value in encoder.named_parameters()
        if name.endswith(("_proj.weight", "fc1.weight", "fc2.weight")) and value.ndim > 1
    ]
    of = {name.removeprefix("text_model."): tuple(value.shape) for name, value in encoder.named_parameters()}
    lora = {name: noise(of[f"{name}.weight"], 3, seed=n, alpha=1.5) for n, name in enumerate(names)}
    kohya = {"lora_te_text_model_" + name.replace(".", "_"): one for name, one in lora.items()}
    unet = {"lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_k": noise((16, 768), 3, seed=99)}
    path = write_lora(tmp_path / "in.safetensors", kohya | unet)
    merge([entry_of(path, 3.0, 0.8)], PLAIN).save(tmp_path / "out", naming="diffusers")
    pipeline = diffusers.StableDiffusionPipeline
    state, alphas = pipeline.lora_state_dict(
        str(tmp_path), weight_name="out.safetensors", local_files_only=True
    )
    pipeline.load_lora_into_text_encoder(state, alphas, encoder, prefix="text_encoder")
    found = {name.removeprefix("text_model."): delta for name, delta in added(encoder).items()}
    agrees(found, {name: 0.8 * one.delta for name, one in lora.items()})
