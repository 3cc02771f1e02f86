"""Pairs, blocks and warnings of a stack, on deltas that can be worked out by hand."""

import math

import pytest
import torch

from lora_alloy.analysis.measure import measure
from lora_alloy.analysis.pairs import pair_lines
from lora_alloy.analysis.report import make_analysis
from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.stack import Entry, build_stack

INPUT = "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k"
OUTPUT = "lora_unet_output_blocks_3_1_transformer_blocks_0_attn2_to_k"
TEXT = "lora_te1_text_model_encoder_layers_0_self_attn_q_proj"


def lora(label, **rows):
    """A LoRA of rank 1 whose delta on each module is `value` in row `row`, column 0."""
    tensors = {}
    for name, module, width in (("here", INPUT, 2048), ("there", OUTPUT, 2048), ("text", TEXT, 768)):
        if name in rows:
            row, value = rows[name]
            up, down = torch.zeros(640 if width == 2048 else 768, 1), torch.zeros(1, width)
            up[row], down[0, 0] = value, 1.0
            tensors |= {f"{module}.lora_up.weight": up, f"{module}.lora_down.weight": down}
    return lora_in_memory(label, tensors, {})


def analysis_of(*entries):
    stack = build_stack(entries)
    return make_analysis(stack, measure(stack, is_deep=True))


def by_label(analysis, *labels):
    return next(pair for pair in analysis.pairs if {pair.first, pair.second} == set(labels))


def test_cosines_sum_over_targets_and_stand_apart_by_block():
    a = lora("a", here=(0, 3.0), there=(0, 4.0))
    b = lora("b", here=(0, 2.0), there=(0, -1.0))
    analysis = analysis_of(Entry(a), Entry(b))
    # (3·2 − 4·1) / (5 · √5)
    assert analysis.pairs[0].cosine == pytest.approx(2 / (5 * math.sqrt(5)))
    cosines = {block.name: block.pairs[0].cosine for block in analysis.blocks}
    assert cosines == {"input_blocks.4": pytest.approx(1), "output_blocks.3": pytest.approx(-1)}
    assert [part.norm for part in analysis.parts] == pytest.approx([5, math.sqrt(5)])
    # The sum is (5, 3): √34 against 5.
    assert analysis.loudness == pytest.approx(math.sqrt(34) / 5)
    assert any("oppose each other in output_blocks.3 (-1.00)" in warning for warning in analysis.warnings)


def test_strengths_and_their_signs_count():
    a, b = lora("a", here=(0, 1.0)), lora("b", here=(0, 1.0), text=(0, 5.0))
    analysis = analysis_of(Entry(a, 2.0), Entry(b, -3.0, 0.0))
    assert analysis.pairs[0].cosine == pytest.approx(-1)
    assert [part.norm for part in analysis.parts] == pytest.approx([2, 3])
    assert "pull in opposite directions" in analysis.warnings[0]


def test_where_an_entry_has_no_strength_there_is_no_pair():
    a, b = lora("a", here=(0, 1.0), text=(0, 1.0)), lora("b", here=(0, 1.0), text=(0, -1.0))
    analysis = analysis_of(Entry(a), Entry(b, 1.0, 0.0))
    assert analysis.pairs[0].shared_count == 1 and analysis.pairs[0].cosine == pytest.approx(1)


def test_loras_that_never_meet_say_so():
    analysis = analysis_of(Entry(lora("a", here=(0, 1.0))), Entry(lora("b", there=(0, 1.0))))
    assert analysis.pairs[0].sentence() == "no target in common"
    assert analysis.overlaps == ((0.0, 0.0), (0.0, 0.0))
    assert analysis.loudness == pytest.approx(math.sqrt(2))


def test_overlap_is_the_share_of_the_first_in_the_second():
    both = lora("both", here=(0, 1.0))
    analysis = analysis_of(Entry(both), Entry(lora("other", here=(1, 1.0))))
    # The columns are the same, the rows are not: half of the sides.
    assert analysis.overlaps[0][1] == pytest.approx(0.5)


def test_a_lora_too_quiet_to_be_seen_is_named():
    analysis = analysis_of(Entry(lora("loud", here=(0, 9.0))), Entry(lora("quiet", here=(1, 1.0))))
    assert "`loud` is 9.0 times as loud as `quiet`" in " ".join(analysis.warnings)


def test_conflict_is_turned_by_a_negative_strength():
    chance = torch.Generator().manual_seed(0)
    made = []
    for label in "ab":
        up, down = torch.randn(640, 8, generator=chance), torch.randn(8, 2048, generator=chance)
        made.append(
            lora_in_memory(label, {f"{INPUT}.lora_up.weight": up, f"{INPUT}.lora_down.weight": down}, {})
        )
    plain, turned = analysis_of(*map(Entry, made)), analysis_of(Entry(made[0]), Entry(made[1], -1.0))
    assert plain.pairs[0].conflict + turned.pairs[0].conflict == pytest.approx(1)
    assert plain.pairs[0].expected + turned.pairs[0].expected == pytest.approx(1)
    assert abs(plain.pairs[0].excess) < 0.02


def test_of_many_pairs_the_largest_cosines_are_told():
    entries = [Entry(lora(f"{place}", here=(place, 1.0 + place))) for place in range(6)]
    entries.append(Entry(lora("twin", here=(3, 7.0))))
    lines = pair_lines(analysis_of(*entries).pairs)
    assert len(lines) == 11 and lines[-1] == "The other 11 pairs have smaller cosines."
    assert "cosine +1.00" in lines[0] and "twin" in lines[0]


def test_text_and_json_hold_the_same_numbers():
    analysis = analysis_of(Entry(lora("a", here=(0, 3.0))), Entry(lora("b", here=(0, 4.0))))
    told = analysis.to_json()
    assert told["parts"][0]["norm"] == pytest.approx(3) and told["pairs"][0]["cosine"] == pytest.approx(1)
    assert "cosine +1.00 (alike)" in analysis.text()
    assert "input_blocks.4" in analysis.text(has_blocks=True)
