"""The sample LoRAs are real, small, and always the same."""

import torch

from lora_alloy.analysis.measure import measure
from lora_alloy.analysis.report import make_analysis
from lora_alloy.lora.file import open_lora
from lora_alloy.lora.inspection import inspect_file
from lora_alloy.lora.sample import INK, ROBOT, SAMPLES, WATERCOLOR, write_sample
from lora_alloy.lora.stack import Entry, build_stack


def test_samples_are_the_same_every_time(tmp_path):
    for sample in SAMPLES:
        first = write_sample(sample, tmp_path / "first").read_bytes()
        torch.manual_seed(7)
        assert write_sample(sample, tmp_path / "second").read_bytes() == first
        assert len(first) < 10_000_000


def test_samples_look_like_the_files_of_three_trainers(tmp_path):
    seen = {sample.name: inspect_file(write_sample(sample, tmp_path)) for sample in SAMPLES}
    assert [one.family for one in seen.values()] == ["sdxl"] * 3
    trainers = {name: one.trainer.name if one.trainer else "" for name, one in seen.items()}
    assert trainers == {
        INK.name: "kohya's sd-scripts",
        WATERCOLOR.name: "diffusers with PEFT",
        ROBOT.name: "ai-toolkit",
    }
    assert [one.ranks.keys() for one in seen.values()] == [{16}, {8}, {12}]
    assert len({tuple(one.dtypes) for one in seen.values()}) == 2
    assert [one.problems for one in seen.values()] == [()] * 3


def test_samples_have_something_to_report(tmp_path):
    stack = build_stack([Entry(open_lora(write_sample(sample, tmp_path))) for sample in SAMPLES])
    analysis = make_analysis(stack, measure(stack))
    styles, ink_robot, wash_robot = analysis.pairs
    assert 0.2 < styles.cosine < 0.6
    assert abs(ink_robot.cosine) < 0.01 and abs(wash_robot.cosine) < 0.01
    assert any("oppose each other in middle_block.1" in warning for warning in analysis.warnings)
