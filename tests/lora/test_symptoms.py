"""Symptoms that people report of LoRA readers, one a test: what such a file is here, and what is said of it.

Others stand where they belong: alphas, headers and rank stabilising in `test_told.py`, two namings of one LoRA in
`test_fused.py`, prefixes in `keys/test_reading.py`, stray tensors in `test_accounts.py`, damage of whole files in
`tests/cli/test_bad_input.py`.
"""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lora_alloy.analysis.blocks import block_of
from lora_alloy.api import analyze, merge
from lora_alloy.core.errors import FileError, StackError
from lora_alloy.lora.entries import Entry, Model
from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy.lora.inspection import inspect_file
from lora_alloy.lora.stack import build_stack
from lora_alloy.lora.target import Part, Route, Target
from lora_alloy.merging.recipe import Recipe

PLAIN = Recipe(method="weighted_sum", auto_strength=False)
QUERY = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
PLACE = "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q"
# up @ down is [[2, 4], [6, 12]]
UP, DOWN = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0, 4.0]])


def pair(name: str = QUERY, up: Tensor = UP, down: Tensor = DOWN) -> dict[str, Tensor]:
    return {f"{name}.lora_up.weight": up, f"{name}.lora_down.weight": down}


def read(tensors: dict[str, Tensor]) -> LoraFile:
    return lora_in_memory("ink", tensors, {})


def delta(tensors: dict[str, Tensor], name: str = QUERY) -> list[list[float]]:
    file = read(tensors)
    return file.load(file.modules[name]).dense().tolist()


def notes(tensors: dict[str, Tensor], partial: bool = False) -> str:
    return " ".join(build_stack([Entry(read(tensors))], partial=partial).notes)


def inspected(tmp_path, tensors: dict[str, Tensor]) -> str:
    save_file({name: value.clone() for name, value in tensors.items()}, tmp_path / "ink.safetensors")
    return " ".join(inspect_file(tmp_path / "ink.safetensors").problems)


def test_a_lokr_of_two_whole_matrices_ignores_its_alpha_and_says_so():
    tensors = {f"{QUERY}.lokr_w1": torch.tensor([[2.0]]), f"{QUERY}.lokr_w2": torch.tensor([[1.0, 3.0]])}
    tensors |= {f"{QUERY}.alpha": torch.tensor(1e10)}
    assert delta(tensors) == [[2.0, 6.0]]
    (left_out,) = (account for account in read(tensors).accounts if account.state == "skipped")
    assert "both matrices of its LoKr are whole" in left_out.reason


def test_one_of_two_sibling_modules_is_merged_and_the_other_is_not_made_up():
    """q and v without k, as some trainers choose: the rows of k stay as they are."""
    names = [f"transformer.transformer_blocks.0.attn.to_{end}" for end in "qv"]
    up, down = torch.ones(32, 1), torch.ones(1, 32)
    tensors = {name: value for one in names for name, value in pair(one, up, down).items()}
    stack = build_stack([Entry(read(tensors))])
    qkv = "diffusion_model.double_blocks.0.img_attn.qkv"
    assert [group.target for group in stack.groups] == [
        Target(qkv, Part(0, 0, 32)),
        Target(qkv, Part(0, 64, 32)),
    ]


def test_a_down_that_a_splitter_cut_along_with_the_up_is_refused_with_both_ranks():
    """Of a fused qkv at rank 192, rows of the up go to q, k and v; cutting the shared down too leaves rank 64."""
    tensors = pair("transformer.transformer_blocks.0.attn.to_q", torch.ones(96, 192), torch.ones(64, 96))
    with pytest.raises(FileError, match=r"up \(96, 192\) and down \(64, 96\), of ranks 192 and 64"):
        read(tensors)


def test_a_control_lora_with_several_adapters_a_layer_is_named_and_not_merged():
    name = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_q"
    tensors = {f"{name}_loras.{n}.{side}.weight": torch.ones(2, 2) for n in (0, 1) for side in ("up", "down")}
    file = read(tensors)
    assert [(problem.name, "several adapters in one layer" in problem.text) for problem in file.unread] == [
        (name, True)
    ]
    with pytest.raises(StackError, match="several adapters in one layer"):
        build_stack([Entry(read(pair() | tensors))])


NORMS = {
    "w_norm": ("w_norm", (2,), "weight"),
    "b_norm": ("b_norm", (2,), "bias"),
    "diff of a norm": ("diff", (2,), "weight"),
    "diff_b": ("diff_b", (2,), "bias"),
}


@pytest.mark.parametrize(("ending", "shape", "parameter"), NORMS.values(), ids=NORMS)
def test_norms_and_other_deltas_of_one_axis_are_merged_and_saved(tmp_path, ending, shape, parameter):
    tensors = {f"{QUERY}.{ending}": torch.tensor([1.0, -2.0])}
    merged = merge([Entry(read(tensors), 0.5)], PLAIN)
    (patch,) = merged
    assert patch.delta.dense().tolist() == [0.5, -1.0]
    assert patch.target.weight == PLACE + (".bias" if parameter == "bias" else "")
    merged.save(tmp_path / "out")
    again = merge([str(tmp_path / "out.safetensors")], PLAIN)
    assert [patch.delta.dense().tolist() for patch in again] == [[0.5, -1.0]]


def test_a_modulation_that_no_loader_applies_is_left_out_and_said():
    """Distilled LoRAs of Wan hold `.diff_m` in every block; ComfyUI lists each as a key that it did not load."""
    tensors = pair("diffusion_model.blocks.0.self_attn.q") | {
        f"diffusion_model.blocks.{block}.diff_m": torch.ones(1, 6, 2) for block in range(3)
    }
    assert (
        "3 tensors are left out, the first `diffusion_model.blocks.0.diff_m`: a change of a modulation"
        in notes(tensors)
    )


def test_a_modulation_among_layers_does_not_hide_the_family(tmp_path):
    names = [f"diffusion_model.blocks.{block}.self_attn.{end}" for block in range(30) for end in "qkvo"]
    up, down = torch.ones(1536, 1), torch.ones(1, 1536)
    tensors = {key: value for name in names for key, value in pair(name, up, down).items()}
    tensors |= {
        f"diffusion_model.blocks.{block}.modulation.diff": torch.ones(1, 6, 1536) for block in range(30)
    }
    file = read(tensors)
    assert [family.key for family in file.families] == ["wan_1_3b"]
    assert "30 of 150 modules change parameters outside of layers" in inspected(tmp_path, tensors)
    merged = merge([Entry(file)], PLAIN)
    merged.save(tmp_path / "out")
    saved = read_names(tmp_path / "out.safetensors")
    assert "diffusion_model.blocks.7.modulation.diff" in saved
    assert "diffusion_model.blocks.7.self_attn.q.lora_up.weight" in saved


def read_names(path) -> set[str]:
    from safetensors import safe_open

    with safe_open(path, "pt") as opened:
        return set(opened.keys())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_an_fp8_file_is_what_its_numbers_say(dtype):
    tensors = {name: value.to(dtype) for name, value in pair().items()}
    assert delta(tensors) == [[2.0, 4.0], [6.0, 12.0]]
    (patch,) = merge([Entry(read(tensors))], PLAIN)
    assert patch.dtype == torch.float16


PACKED = {
    "one number": (".lora_up.scale_weight", torch.tensor(0.5), [[1.0, 2.0], [3.0, 6.0]]),
    "one number on an axis": (".lora_up.weight_scale", torch.tensor([0.5]), [[1.0, 2.0], [3.0, 6.0]]),
    "one a row": (".lora_up.scale_weight", torch.tensor([0.5, 2.0]), [[1.0, 2.0], [12.0, 24.0]]),
    "one a row, on two axes": (
        ".lora_up.weight_scale",
        torch.tensor([[0.5], [2.0]]),
        [[1.0, 2.0], [12.0, 24.0]],
    ),
    "of the down": (".lora_down.scale_weight", torch.tensor(10.0), [[20.0, 40.0], [60.0, 120.0]]),
}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize(("ending", "scale", "expected"), PACKED.values(), ids=PACKED)
def test_packed_factors_are_multiplied_by_the_scale_beside_them(tmp_path, dtype, ending, scale, expected):
    tensors = {name: value.to(dtype) for name, value in pair().items()}
    if dtype == torch.int8:  # whole numbers make sense with scales alone
        tensors |= {f"{QUERY}.lora_{end}.weight_scale": torch.tensor(1.0) for end in ("up", "down")}
        tensors = {name: value for name, value in tensors.items() if not name.startswith(QUERY + ending[:9])}
        side = "up" if "up" in ending else "down"
        tensors[f"{QUERY}.lora_{side}.weight"] = (UP if side == "up" else DOWN).to(dtype)
    tensors |= {QUERY + ending: scale, "scaled_fp8": torch.zeros(2)}
    assert delta(tensors) == expected
    file = read(tensors)
    assert sorted(account.tensor for account in file.accounts) == sorted(tensors)
    assert {account.tensor for account in file.accounts if account.state != "used"} == {"scaled_fp8"}
    assert "factors are packed, with scales beside them" in inspected(tmp_path, tensors)
    saved = merge([Entry(file)], PLAIN).save(tmp_path / "out")
    assert saved.read_error == 0.0


def test_a_scale_that_fits_no_factor_is_refused_with_both_shapes():
    tensors = {name: value.to(torch.float8_e4m3fn) for name, value in pair().items()}
    tensors[f"{QUERY}.lora_up.scale_weight"] = torch.ones(3)
    file = read(tensors)
    with pytest.raises(FileError, match=r"has the shape \(3,\), and is to scale a factor of \(2, 1\)"):
        file.load(file.modules[QUERY])


def test_the_scale_of_an_adapter_of_peft_is_no_second_factor():
    name = "unet.mid_block.attentions.0.proj_in"
    tensors = {f"{name}.lora_B.weight": UP, f"{name}.lora_A.weight": DOWN}
    tensors = {key: value.to(torch.float8_e5m2) for key, value in tensors.items()}
    tensors[f"{name}.lora_A.scale_weight"] = torch.tensor(2.0)
    assert delta(tensors, name) == [[4.0, 8.0], [12.0, 24.0]]


@pytest.mark.parametrize("adapter", ["default", "default_0", "my-style", "Ölbild", "1"])
def test_an_adapter_may_be_called_anything(adapter):
    name = "unet.mid_block.attentions.0.proj_in"
    tensors = {f"{name}.lora_B.{adapter}.weight": UP, f"{name}.lora_A.{adapter}.weight": DOWN}
    assert delta(tensors, name) == [[2.0, 4.0], [6.0, 12.0]]


@pytest.mark.parametrize("ending", [".lora_A.bias", ".lora_down.bias", ".lora_A.default.bias"])
def test_a_bias_of_a_down_is_no_second_down_and_is_refused_by_name(ending):
    with pytest.raises(StackError, match="comes with a bias of its down factor, which no loader applies"):
        build_stack([Entry(read(pair() | {QUERY + ending: torch.ones(1)}))])


def test_two_namings_with_different_values_are_two_loras_in_one_file():
    other = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    tensors = pair() | {f"{other}.lora_B.weight": 2 * UP, f"{other}.lora_A.weight": DOWN}
    with pytest.raises(StackError) as problem:
        build_stack([Entry(read(tensors))])
    said = str(problem.value)
    for words in (QUERY, other, PLACE, "two names with different values", "the modules of one naming"):
        assert words in said


def test_an_invented_architecture_merges_by_name_and_says_so(tmp_path):
    tensors = pair("foo.blocks.3.bar")
    assert "no model family known here" in inspected(tmp_path, tensors)
    merged = merge([Entry(read(tensors)), (str(tmp_path / "ink.safetensors"), 2.0)], PLAIN)
    (patch,) = merged
    assert patch.delta.dense().tolist() == [[6.0, 12.0], [18.0, 36.0]]
    merged.save(tmp_path / "out")
    assert "foo.blocks.3.bar.lora_up.weight" in read_names(tmp_path / "out.safetensors")


def test_a_block_that_a_file_lacks_is_no_block_of_it():
    names = [f"lora_unet_double_blocks_{block}_img_attn_proj" for block in (0, 7)]
    up, down = torch.ones(32, 1), torch.ones(1, 32)
    both = read({key: value for name in names for key, value in pair(name, up, down).items()})
    first = read(pair(names[0], up, 2 * down))
    merged = merge([Entry(both), Entry(first)], PLAIN)
    assert [len(source.blocks) for source in merged.report.sources] == [2, 1]
    assert sorted(merged.report.blocks) == sorted({block_of(patch.target) for patch in merged})
    assert sum(sum(counts.values()) for counts in merged.report.blocks.values()) == 2
    _, measured = analyze([Entry(both), Entry(first)])
    assert [len(one.entries) for one in measured] == [2, 1]


KNOWN = {
    "VeRA": "attn.to_k.vera_lambda_b",
    "a LoRA of an embedding": "text_model.embeddings.token_embedding.lora_embedding_A.default",
    "FourierFT": "attn.to_k.fourierft_spectrum",
    "HRA": "attn.to_k.hra_u",
    "a whole module": "proj_out.modules_to_save.default.weight",
}


@pytest.mark.parametrize(("what", "name"), KNOWN.items(), ids=KNOWN)
def test_other_methods_of_peft_are_called_by_their_names(what, name):
    with pytest.raises(StackError, match=f"is stored as {what}"):
        build_stack([Entry(read(pair() | {name: torch.ones(2, 2)}))])


def test_a_base_weight_that_was_saved_along_changes_nothing():
    tensors = pair() | {"unet.mid_block.conv.base_layer.weight": torch.ones(2, 2)}
    assert notes(tensors) == ""
    assert [one.reason for one in read(tensors).accounts if one.state == "skipped"] == [
        "a base weight, which PEFT keeps beside the LoRA: not read"
    ]


def test_what_ends_in_weight_is_told_by_the_step_before():
    with pytest.raises(FileError, match=r"end in `.lora_A1.weight` \(1\), `.lora_B1.weight` \(1\)"):
        read({"x.lora_A1.weight": torch.ones(1, 2), "x.lora_B1.weight": torch.ones(2, 1)})


ODD = {
    "a line break": "a\nb",
    "an escape": "\x1b[31mred",
    "very long": "x" * 5000,
    "right to left": "\u202egnp",
    "not ASCII": "ünïcödé.层",
    "blank": " ",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_name_is_mentioned_in_one_short_line(tmp_path, odd):
    tensors = pair() | {odd: torch.ones(1), f"{odd}.lora_up.weight": UP, f"{odd}.lora_down.weight": DOWN}
    said = [*build_stack([Entry(read(tensors))]).notes, *inspected(tmp_path, tensors).split(". ")]
    assert any("nobody here" in one for one in said)
    assert all(len(one) < 600 and "\n" not in one for one in said)
    broken = pair() | {f"{odd}.lora_up.weight": UP}
    with pytest.raises(FileError) as problem:
        read(broken)
    assert len(str(problem.value)) < 600 and "\n" not in str(problem.value)


def test_a_part_of_the_model_at_hand_is_all_that_is_merged_and_the_rest_is_said():
    """Image-to-video LoRAs hold modules that a text-to-video model lacks."""
    name = "diffusion_model.blocks.0.cross_attn.k_img"
    here = "diffusion_model.blocks.0.cross_attn.k"
    tensors = pair(here) | pair(name) | {f"{name}.diff_b": torch.ones(2)}
    model = Model({here: Route(Target(here))}, {here: (2, 2)})
    stack = build_stack([Entry(read(tensors))], model)
    assert [group.target.weight for group in stack.groups] == [here]
    assert "2 of 3 modules (67%) have no place in this model" in " ".join(stack.notes)


def test_the_delta_of_a_file_does_not_depend_on_how_its_alpha_is_stored():
    expected = np.array([[4.0, 8.0], [12.0, 24.0]])
    alphas = (
        torch.tensor(2),
        torch.tensor([2.0]),
        torch.tensor([[2.0]]),
        torch.tensor(2.0, dtype=torch.bfloat16),
    )
    for alpha in alphas:
        found = delta(pair() | {f"{QUERY}.alpha": alpha})
        np.testing.assert_array_equal(found, expected)
