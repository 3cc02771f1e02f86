"""The analysis pass: every group once, in order, with progress that may stop it; blocks of the report."""

import time

import pytest
import torch

from lora_alloy.analysis.blocks import block_of
from lora_alloy.analysis.measure import measure
from lora_alloy.lora.target import Part, Target
from lora_alloy_testing.builders import TOY, stack_of, toy_lora


def test_every_group_is_measured_once_and_in_order():
    stack = stack_of(toy_lora(1), toy_lora(2, names=list(TOY)[1:]))
    found = measure(stack, is_deep=True)
    assert [one.target for one in found] == [group.target for group in stack.groups]
    assert [one.size for one in found] == [864, 384, 400, 240]
    for one in found:
        count = len(one.entries)
        assert one.gram.shape == (count, count)
        assert len(one.effective_rank) == count
        assert (one.conflict is None) is (count == 1)


def test_progress_is_told_before_the_first_and_after_every_target():
    told: list[tuple[str, int, int]] = []
    measure(stack_of(toy_lora(1)), progress=lambda *step: told.append(step))
    assert told == [("analyse", done, 4) for done in range(5)]


def test_what_progress_raises_ends_the_work():
    def stop(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(stack_of(toy_lora(1)), progress=stop)


def test_the_callers_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measure(stack_of(toy_lora(1)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("weight", "block"),
    [
        ("diffusion_model.input_blocks.4.1.transformer_blocks.0.attn1.to_q", "input_blocks.4"),
        ("diffusion_model.middle_block.1.proj_in", "middle_block.1"),
        ("diffusion_model.double_blocks.7.img_attn.qkv", "double_blocks.7"),
        ("diffusion_model.time_embed.0", "time_embed.0"),
        ("diffusion_model.blocks_3_attn_q", "blocks.3"),
        ("diffusion_model.img_in", "img_in"),
        ("text_encoders.clip_l.transformer.text_model.encoder.layers.3.mlp.fc1", "clip_l.layers.3"),
        ("text_encoders.t5xxl.transformer.encoder.block.5.layer.0.SelfAttention.q", "t5xxl.block.5"),
    ],
)
def test_the_block_of_a_target(weight, block):
    assert block_of(Target(weight)) == block
    assert block_of(Target(weight, Part(0, 0, 4))) == block


@pytest.mark.parametrize("name", ["a_" * 5000, "a." * 5000 + "!", "1_" * 5000, "a1_" * 5000 + "b"])
def test_a_name_without_an_end_has_a_block_at_once(name):
    began = time.process_time()
    assert block_of(Target(f"diffusion_model.{name}"))
    assert time.process_time() - began < 1
