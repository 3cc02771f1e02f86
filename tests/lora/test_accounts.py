"""Every tensor of every file is accounted for, whatever its name; and what damage to factors is called."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from lora_alloy.core.errors import FileError, StackError
from lora_alloy.lora.file import LoraFile, lora_in_memory
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy_testing.builders import TOY, account_for_all, noise, tensors_of, toy_lora

NAME, OTHER = list(TOY)[0], list(TOY)[2]


def in_memory(tensors: dict[str, Tensor]) -> LoraFile:
    return lora_in_memory("ink", tensors, {})


def states(tensors: dict[str, Tensor]) -> dict[str, str]:
    file = in_memory(tensors)
    account_for_all(file, tensors)
    return {account.tensor: account.state for account in file.accounts}


def test_an_alpha_without_factors_is_skipped_with_its_reason():
    tensors = tensors_of(toy_lora(1)) | {"lora_unet_orphan.alpha": torch.tensor(4.0)}
    assert states(tensors)["lora_unet_orphan.alpha"] == "skipped"
    assert "no effect" in next(
        a.reason for a in in_memory(tensors).accounts if a.tensor.startswith("lora_unet_o")
    )


def test_a_strange_tensor_is_unknown_and_the_stack_says_so():
    tensors = tensors_of(toy_lora(1)) | {"something.else": torch.ones(3)}
    assert states(tensors)["something.else"] == "unknown"
    stack = build_stack([Entry(in_memory(tensors))])
    assert any("something.else" in note for note in stack.notes)


def test_bookkeeping_is_skipped_with_a_line():
    tensors = tensors_of(toy_lora(1)) | {"bundle_emb.ink.emb_params": torch.ones(3), "_aux.x": torch.ones(1)}
    found = states(tensors)
    assert found["bundle_emb.ink.emb_params"] == found["_aux.x"] == "skipped"
    assert build_stack([Entry(in_memory(tensors))]).notes == (
        "`ink`: 1 tensor is left out, the first `bundle_emb.ink.emb_params`: a bundled embedding.",
        "`ink`: 1 tensor is left out, the first `_aux.x`: slider bookkeeping.",
    )


def test_what_one_format_outdoes_in_a_module_is_left_out_with_a_line():
    tensors = tensors_of(toy_lora(1)) | {f"{NAME}.diff": torch.ones(24, 16)}
    (note,) = build_stack([Entry(in_memory(tensors))]).notes
    assert note.startswith("`ink`: 2 tensors are left out") and "has a `diff` too" in note


def test_factors_that_mean_something_else_are_not_merged_as_lora():
    """AdaLoRA's singular values lie between two factors that look like those of LoRA."""
    tensors = {
        "a.to_q.lora_A": torch.ones(2, 8),
        "a.to_q.lora_B": torch.ones(6, 2),
        "a.to_q.lora_E": torch.ones(2, 1),
    }
    file = in_memory(tensors)
    account_for_all(file, tensors)
    assert not file.modules and "AdaLoRA" in file.unread[0].text
    with pytest.raises(StackError, match="AdaLoRA"):
        build_stack([Entry(in_memory(tensors | tensors_of(toy_lora(1))))])


UNREAD = {
    "a bias and an alpha": ({".lora_B.bias": (24,), ".alpha": ()}, "a bias and an alpha"),
    "a wider base weight and DoRA": (
        {".reshape_weight": (2,), ".dora_scale": (24, 1)},
        "DoRA magnitudes for a wider base weight",
    ),
}


@pytest.mark.parametrize(("extra", "sentence"), UNREAD.values(), ids=UNREAD)
def test_a_module_of_which_a_part_is_not_read_stops_the_merge_unless_a_partial_one_is_asked_for(
    extra, sentence
):
    tensors = tensors_of(toy_lora(1)) | {f"{NAME}{end}": torch.ones(shape) for end, shape in extra.items()}
    file = in_memory(tensors)
    account_for_all(file, tensors)
    assert [problem.name for problem in file.unread] == [NAME]
    with pytest.raises(StackError, match=rf"`ink`: 1 of 4 modules are not read; `{NAME}` .*{sentence}"):
        build_stack([Entry(file)])
    stack = build_stack([Entry(file)], partial=True)
    assert len(stack.groups) == 3
    assert any(sentence in note and "partial" in note for note in stack.notes)


@pytest.mark.parametrize(
    ("ending", "what"),
    [(".oft_r", "OFT"), (".ia3_l", "IA")],
)
def test_a_file_of_another_format_alone_is_named_not_merged(ending, what):
    tensors = {f"{NAME}{ending}": torch.ones(4, 4)}
    file = in_memory(tensors)
    account_for_all(file, tensors)
    with pytest.raises(StackError, match=what):
        build_stack([Entry(file)])


def broken(**roles: tuple[int, ...]) -> dict[str, Tensor]:
    """A sound file in which one module's factors have other shapes."""
    tensors = tensors_of(toy_lora(1))
    ends = {"up": ".lora_up.weight", "down": ".lora_down.weight", "mid": ".lora_mid.weight"}
    for role, shape in roles.items():
        if shape:
            tensors[NAME + ends[role]] = torch.ones(shape)
        else:
            del tensors[NAME + ends[role]]
    return tensors


DAMAGE = {
    "mismatched ranks": (broken(up=(24, 5)), "of ranks 5 and 4"),
    "rank 0": (broken(up=(24, 0), down=(0, 16)), "rank and sizes must not be 0"),
    "no rows": (broken(up=(0, 4)), "rank and sizes must not be 0"),
    "a vector": (broken(up=(24,)), "both must have two axes or more"),
    "a kernel in the up": (broken(up=(24, 4, 3, 3)), "an up factor with a kernel"),
    "up without down": (broken(down=()), "has the up factor but not the down factor"),
    "down without up": (broken(up=()), "has the down factor but not the up factor"),
    "a mid of another rank": (broken(mid=(3, 4, 3, 3)), "do not multiply"),
}


@pytest.mark.parametrize(("tensors", "sentence"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_factors_are_refused_with_the_module_and_what_is_wrong(tensors, sentence):
    with pytest.raises(FileError, match=sentence) as problem:
        in_memory(tensors)
    assert f"`{NAME}`" in str(problem.value)
    assert "ink" in str(problem.value)


def test_a_module_without_a_name_is_damage():
    nameless = {".lora_up.weight": torch.ones(4, 2), ".lora_down.weight": torch.ones(2, 4)}
    with pytest.raises(FileError, match=r"`.lora_up.weight` is of a module without a name"):
        in_memory(nameless)


def test_several_damaged_modules_are_all_in_one_message():
    tensors = tensors_of(toy_lora(1))
    for name in TOY:
        tensors[f"{name}.lora_up.weight"] = torch.ones(3, 9)
    with pytest.raises(FileError) as problem:
        in_memory(tensors)
    assert all(f"`{name}`" in str(problem.value) for name in TOY)


def test_integers_in_place_of_factors_are_damage():
    tensors = tensors_of(toy_lora(1)) | {f"{NAME}.lora_up.weight": torch.ones(24, 4, dtype=torch.int8)}
    file = in_memory(tensors)
    with pytest.raises(FileError, match="not floating-point"):
        file.load(file.modules[NAME])


def test_one_factor_in_two_spellings_cannot_be_told_apart():
    factors = noise((24, 16), 4, seed=1)
    tensors = tensors_of({NAME: factors}) | tensors_of({NAME: factors}, "peft")
    with pytest.raises(FileError, match="twice"):
        in_memory(tensors)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({}, "holds no tensors at all"),
        (
            {f"model.diffusion_model.{n}.weight": torch.ones(2) for n in range(30)},
            "a whole model, a checkpoint",
        ),
        ({f"transformer.blocks.{n}.weight": torch.ones(2) for n in range(30)}, "a whole model, a checkpoint"),
        ({"first_stage_model.conv.weight": torch.ones(2), "x": torch.ones(1)}, "a whole model, a checkpoint"),
        ({"emb_params": torch.ones(2, 768)}, "an embedding"),
        ({"clip_l": torch.ones(2, 768), "clip_g": torch.ones(2, 1280)}, "an embedding"),
        ({"string_to_param.*": torch.ones(2, 768)}, "an embedding"),
        (
            {"lora_controlnet": torch.ones(0), "input_blocks.1.1.proj_in.up": torch.ones(3, 2)},
            "a control LoRA of Stab",
        ),
        ({f"controlnet_blocks.{n}.weight": torch.ones(2, 2) for n in range(30)}, "a ControlNet"),
        (
            {"image_proj.a.weight": torch.ones(2, 2), "ip_adapter.1.to_k_ip.weight": torch.ones(2, 2)},
            "an IP-Adapter",
        ),
        ({f"decoder.up.{n}.weight": torch.ones(2, 2) for n in range(30)}, "a VAE"),
        ({f"text_model.encoder.layers.{n}.weight": torch.ones(2, 2) for n in range(30)}, "a text encoder"),
        ({"clip_l.logit.weight": torch.ones(2, 2)}, "has no LoRA factors"),
    ],
    ids=str,
)
def test_what_is_no_lora_is_called_what_it_is(tensors, sentence):
    with pytest.raises(FileError, match=sentence):
        in_memory(tensors)


def test_accounts_of_a_sound_file_are_all_used():
    tensors = tensors_of(toy_lora(1, alpha=2.0))
    assert Counter(states(tensors).values()) == {"used": 12}
    assert build_stack([Entry(in_memory(tensors))]).notes == ()
