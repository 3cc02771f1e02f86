"""Scales that only words tell: reported with what they would change, honoured only when that is asked for."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_alloy.api import merge, plan, stack_of
from lora_alloy.lora.file import open_lora
from lora_alloy.lora.inspection import inspect_file
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import difference
from lora_alloy_testing.exact_modules import lokr
from lora_alloy_testing.small_loras import SDXL, SDXL_PEFT, write_small

HONOURING = Recipe(method="weighted_sum", auto_strength=False, honour_metadata=True)
PLAIN = Recipe(method="weighted_sum", auto_strength=False)
FIRST, *_ = SDXL_PEFT


def header(**settings: object) -> dict[str, str]:
    return {"lora_adapter_metadata": json.dumps({f"unet.{key}": value for key, value in settings.items()})}


def honoured(path) -> dict[str, float]:
    return {key: module.gain for key, module in open_lora(path).honouring().modules.items()}


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"r": 4, "lora_alpha": 2}, 0.5),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True}, 4.0),
        ({"r": 4, "lora_alpha": 4}, 1.0),
        ({"r": 16, "lora_alpha": 8}, 1.0),  # words of another rank are of another file
        ({"r": 4, "lora_alpha": 2, "alpha_pattern": {"attn2.to_k": 1, "attn2.to_v": 1}}, 0.25),
        ({"r": 32, "lora_alpha": 2, "rank_pattern": {"to_k": 4, "to_v": 4}}, 0.5),
        ({"r": 4, "lora_alpha": 2, "alpha_pattern": {"^to_k": 1}}, 0.5),
        ({"r": 4, "lora_alpha": 2, "alpha_pattern": {"(a+)+$": 1}}, 1.0),
        ({"r": 0, "lora_alpha": 2}, 1.0),
        ({"r": 4, "lora_alpha": -2}, 1.0),
        ({"r": 4, "lora_alpha": "2"}, 0.5),
    ],
    ids=str,
)
def test_settings_of_peft_in_the_header_are_honoured_when_asked(tmp_path, settings, scale):
    path = write_small(tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, metadata=header(**settings))
    assert honoured(path) == dict.fromkeys(SDXL_PEFT, scale)


def test_a_pattern_counts_for_its_own_modules_the_first_before_the_others(tmp_path):
    patterns = {"transformer_blocks.0.attn2.to_k": 1, "to_k": 3}
    told = header(r=4, lora_alpha=4, alpha_pattern=patterns)
    gains = honoured(write_small(tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, metadata=told))
    expected = {(0, "k"): 0.25, (1, "k"): 0.75, (0, "v"): 1.0, (1, "v"): 1.0}
    assert [gains[name] for name in SDXL_PEFT] == [expected[b, e] for b in (0, 1) for e in "kv"]


def test_settings_of_another_component_say_nothing(tmp_path):
    told = {"lora_adapter_metadata": '{"text_encoder.r": 4, "text_encoder.lora_alpha": 2}'}
    path = write_small(tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, metadata=told)
    assert set(honoured(path).values()) == {1.0} and inspect_file(path).problems == ()


def test_patterns_that_are_expressions_are_named_and_never_run(tmp_path):
    told = header(r=4, lora_alpha=2, alpha_pattern={"(a+)+$": 1})
    path = write_small(tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, metadata=told)
    assert any("regular expressions" in problem for problem in inspect_file(path).problems)


@pytest.mark.parametrize(
    ("name", "beside", "is_read"),
    [
        ("adapter_model.safetensors", (), True),
        ("style.safetensors", (), True),
        ("adapter_model.safetensors", ("other.safetensors",), True),
        ("style.safetensors", ("other.safetensors",), False),
    ],
)
def test_an_adapter_config_beside_the_file_is_reported_and_honoured(tmp_path, name, beside, is_read):
    path = write_small(tmp_path / name, SDXL_PEFT, alpha=None)
    for other in beside:
        write_small(tmp_path / other)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 1}')
    assert set(honoured(path).values()) == ({0.25} if is_read else {1.0})
    said = " ".join(inspect_file(path).problems)
    assert ("`adapter_config.json` beside the file says alpha 1 at rank 4" in said) == is_read


@pytest.mark.parametrize("text", ["", "[1]", "{" * 10_000, "\ufeff{}", '{"r": [], "lora_alpha": {}}'])
def test_an_adapter_config_that_is_none_is_left_alone(tmp_path, text):
    path = write_small(tmp_path / "adapter_model.safetensors", SDXL_PEFT, alpha=None)
    (tmp_path / "adapter_config.json").write_text(text)
    assert inspect_file(path).problems == ()


def test_an_alpha_in_the_header_only_is_reported_and_honoured_when_asked(tmp_path):
    told = {"ss_network_alpha": "1", "ss_network_dim": "4"}
    path = write_small(tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, metadata=told)
    (problem,) = inspect_file(path).problems
    assert "a scale of 0.25" in problem and "--honour-metadata" in problem
    assert set(honoured(path).values()) == {0.25}


def test_a_rank_stabilised_lora_whose_alpha_is_stored_is_scaled_once(tmp_path):
    """LyCORIS stores `alpha · √rank`: the scale is alpha / rank, whatever the header says of rank stabilising."""
    told = header(r=4, lora_alpha=2, use_rslora=True) | {"ss_network_args": '{"rs_lora": "True"}'}
    path = write_small(tmp_path / "ink.safetensors", alpha=2.0 * 4**0.5, metadata=told)
    file = open_lora(path)
    for opened in (file, file.honouring()):
        assert {opened.load(module).scale for module in opened.modules.values()} == {1.0}


def test_a_merge_is_what_loaders_render_unless_the_recipe_honours_the_header(tmp_path):
    told = header(r=4, lora_alpha=2)
    path = write_small(
        tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, metadata=told, dtype=torch.float32
    )
    tensors = load_file(path)
    rendered = (
        tensors[f"{FIRST}.lora_B.weight"].double() @ tensors[f"{FIRST}.lora_A.weight"].double()
    ).numpy()
    for recipe, scale in ((PLAIN, 1.0), (HONOURING, 0.5)):
        merged = merge([str(path)], recipe)
        patches = {str(patch.target): patch for patch in merged}
        patch = next(patch for name, patch in patches.items() if "transformer_blocks.0.attn2.to_k" in name)
        assert difference(patch.delta.dense().double().numpy(), scale * rendered) < 1e-5
        assert any("take a scale of 0.5" in note for note in merged.stack.notes) == (scale == 0.5)


def test_a_stack_that_is_made_already_honours_the_header_too(tmp_path):
    path = write_small(
        tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, metadata=header(r=4, lora_alpha=2)
    )
    direct = merge([str(path)], HONOURING)
    made = merge(stack_of([str(path)]), HONOURING)
    replayed = merge([str(path)], plan([str(path)], HONOURING))
    for other in (made, replayed):
        for one, two in zip(direct, other, strict=True):
            assert torch.equal(one.delta.flat(), two.delta.flat())
    assert merge(stack_of([str(path)])).stack.notes == ()


def test_a_file_and_itself_with_its_header_honoured_are_two_entries(tmp_path):
    path = write_small(
        tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, metadata=header(r=4, lora_alpha=2)
    )
    file = open_lora(path)
    merged = merge([Entry(file), Entry(file.honouring())], PLAIN)
    assert len(merged.stack.entries) == 2
    one = file.load(file.modules[FIRST]).dense()
    patch = next(patch for patch in merged if "transformer_blocks.0.attn2.to_k" in patch.target.weight)
    assert difference(patch.delta.dense().numpy(), 1.5 * one.numpy()) < 1e-2


def test_the_bias_of_an_up_goes_with_the_scale_of_its_factors(tmp_path):
    path = write_small(tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None)
    tensors = load_file(path) | {f"{FIRST}.lora_B.bias": torch.ones(640)}
    save_file(tensors, path, header(r=4, lora_alpha=2))
    file = open_lora(path).honouring()
    assert file.modules[f"{FIRST}.bias"].gain == 0.5
    assert torch.equal(file.load(file.modules[f"{FIRST}.bias"]).dense(), torch.full((640,), 0.5))


def test_a_lokr_that_loaders_render_32_times_too_strong_is_suspected(tmp_path):
    made = lokr((32, 32), (20, 64), alpha=1.0)
    path = tmp_path / "kron.safetensors"
    name = next(iter(SDXL))
    told = {"ss_network_dim": "32", "ss_network_alpha": "1", "ss_network_module": "lycoris.kohya"}
    save_file({f"{name}.{end}": value for end, value in made.tensors.items()}, path, told)
    (problem,) = inspect_file(path).problems
    assert "both matrices whole" in problem and "32 times too strong" in problem
    file = open_lora(path)
    plain, honouring = (one.load(one.modules[name]) for one in (file, file.honouring()))
    assert (plain.scale, honouring.scale) == (1.0, 1 / 32)


@pytest.mark.parametrize("alpha", [32.0, 1e10])
def test_the_alphas_that_trainers_store_with_a_whole_lokr_are_no_suspicion(tmp_path, alpha):
    path, name = tmp_path / "kron.safetensors", next(iter(SDXL))
    tensors = lokr((32, 32), (20, 64), alpha=alpha).tensors
    save_file({f"{name}.{end}": value for end, value in tensors.items()}, path, {"ss_network_dim": "32"})
    assert inspect_file(path).problems == ()
    assert honoured(path) == {name: 1.0}


def test_uneven_ranks_with_one_alpha_for_all_are_suspected(tmp_path):
    path = write_small(tmp_path / "ink.safetensors", rank=4, alpha=4.0)
    tensors = load_file(path)
    name = next(iter(SDXL))
    tensors |= {
        f"{name}.lora_up.weight": torch.zeros(640, 16),
        f"{name}.lora_down.weight": torch.zeros(16, 2048),
    }
    save_file(tensors, path)
    (problem,) = inspect_file(path).problems
    assert "ranks go from 4 to 16, so scales go from 1 down to 0.25" in problem


def test_an_alpha_of_1_that_nobody_asked_for_is_suspected(tmp_path):
    """A file without alpha that a program saved again with an alpha of 1 has 1/rank of its effect."""
    lost = write_small(tmp_path / "lost.safetensors", alpha=1.0)
    meant = write_small(tmp_path / "meant.safetensors", alpha=1.0, metadata={"ss_network_alpha": "1"})
    (problem,) = inspect_file(lost).problems
    assert "a scale of 1/4" in problem
    assert inspect_file(meant).problems == ()


def test_a_file_without_alpha_is_saved_and_read_back_at_full_strength(tmp_path):
    path = write_small(tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None, dtype=torch.float32)
    merge([str(path)], PLAIN).save(tmp_path / "out")
    before, after = open_lora(path), open_lora(tmp_path / "out.safetensors")
    one = before.load(before.modules[FIRST]).dense().numpy()
    other = after.load(
        next(module for name, module in after.modules.items() if "blocks.0.attn2.to_k" in name)
    )
    assert difference(other.dense().numpy(), one) < 1e-6
    assert inspect_file(tmp_path / "out.safetensors").alphas.scales == {1.0: 4}


def test_a_stray_alpha_is_said(tmp_path):
    path = write_small(tmp_path / "ink.safetensors")
    save_file(load_file(path) | {"lora_unet_gone.alpha": torch.tensor(4.0)}, path)
    (problem,) = inspect_file(path).problems
    assert "`lora_unet_gone.alpha`" in problem and "no effect" in problem


def test_what_comfyui_renders_otherwise_is_said(tmp_path):
    path, name = write_small(tmp_path / "wash.safetensors", SDXL_PEFT, alpha=None), FIRST
    extra = {f"{name}.lora_B.bias": torch.ones(640), f"{name}.scalar": torch.tensor(0.5)}
    extra["unet.down_blocks.1.attentions.0.transformer_blocks.0.norm1.set_weight"] = torch.ones(640)
    save_file(load_file(path) | extra, path)
    said = " ".join(inspect_file(path).problems)
    for words in ("come with a scalar", "are biases of an up factor", "replace a weight"):
        assert f"1 of 6 modules {words}" in said
