"""`resize` and `convert`: sizes kept, errors stated, headers carried over."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lora_alloy.api import rewrite
from lora_alloy.lora.file import open_lora
from lora_alloy.merging.fit import fitted, singular_values
from lora_alloy_testing.small_loras import SDXL, SDXL_TEXT, write_small


@pytest.fixture
def ink(tmp_path):
    return write_small(tmp_path / "ink.safetensors", SDXL | SDXL_TEXT, seed=1, rank=8)


def deltas(path):
    file = open_lora(path)
    return {name: file.load(module).dense().double() for name, module in file.modules.items()}


def header(path):
    with safe_open(path, "pt") as opened:
        return opened.metadata()


def test_a_rank_is_the_optimum_and_the_stated_error_is_the_largest(run, ink, tmp_path):
    ran = run("resize", ink, "-o", tmp_path / "small", "--rank", "3", "--json", tmp_path / "r.json")
    assert ran.code == 0, ran.err
    told = json.loads((tmp_path / "r.json").read_text())
    worst = 0.0
    for delta in deltas(ink).values():
        values = torch.linalg.svdvals(delta.flatten(1))
        worst = max(worst, float((values[3:].square().sum() / values.square().sum()).sqrt()))
    assert told["proof"]["merge_error"] == pytest.approx(worst, rel=1e-2)
    ranks = {
        value.shape[0]
        for name, value in load_file(tmp_path / "small.safetensors").items()
        if "lora_down" in name
    }
    assert ranks == {3}


def test_a_tolerance_bounds_the_error_of_every_target(run, ink, tmp_path):
    assert run("resize", ink, "-o", tmp_path / "small", "--tolerance", "0.3").code == 0
    before = [delta.flatten(1) for delta in deltas(ink).values()]
    after = [delta.flatten(1) for delta in deltas(tmp_path / "small.safetensors").values()]
    assert len(before) == len(after)
    norms = sorted(float(delta.norm()) for delta in before)
    kept = sorted(float(delta.norm()) for delta in after)
    assert all(new >= 0.95 * old for old, new in zip(norms, kept, strict=True))


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_size_is_kept_and_all_but_used(run, ink, tmp_path, share):
    allowed = int(ink.stat().st_size * share)
    ran = run("resize", ink, "-o", tmp_path / "small", "--size", f"{allowed}B")
    assert ran.code == 0, ran.err
    size = (tmp_path / "small.safetensors").stat().st_size
    assert 0.6 * allowed < size <= allowed
    assert run("verify", tmp_path / "small.safetensors", ink).code == 0


def test_a_size_holds_for_a_file_whose_header_is_long(run, ink, tmp_path):
    save_file(load_file(ink), tmp_path / "wordy.safetensors", {"ss_tag_frequency": "x" * 20_000})
    allowed = int((tmp_path / "wordy.safetensors").stat().st_size * 0.8)
    ran = run("resize", tmp_path / "wordy.safetensors", "-o", tmp_path / "small", "--size", f"{allowed}B")
    assert ran.code == 0, ran.err
    assert (tmp_path / "small.safetensors").stat().st_size <= allowed


def test_by_size_the_directions_that_carry_most_for_their_bytes_stay(tmp_path, ink):
    patches = rewrite(ink).patches
    whole = sum(patch.size_bytes for patch in patches)
    cut = fitted(patches, whole // 2 + 700 * len(patches))
    ratios = []
    for patch, small in zip(patches, cut, strict=True):
        cost = patch.shape[0] + patch.delta.flat().shape[1]
        values = singular_values(patch.delta).square() / cost
        ratios.append(
            (
                float(values[small.rank - 1]),
                float(values[small.rank]) if small.rank < len(values) else 0.0,
                small.rank,
            )
        )
    smallest_kept = min(kept for kept, _, rank in ratios if rank > 1)
    largest_lost = max(lost for _, lost, _ in ratios)
    assert smallest_kept >= largest_lost * 0.999


def test_too_small_a_size_and_no_size_are_sentences(run, ink, tmp_path):
    for words, sentence in (
        (("--size", "10"), "too few"),
        (("--size", "ten"), "is no size"),
        (("--rank", "0"), "must be more than 0"),
        ((), "required"),
    ):
        ran = run("resize", ink, "-o", tmp_path / "small", *words)
        assert ran.code == 1 and sentence in ran.err
    assert not (tmp_path / "small.safetensors").exists()


@pytest.mark.parametrize("naming", ["kohya", "diffusers", "comfyui"])
def test_a_conversion_changes_names_and_nothing_else(run, ink, tmp_path, naming):
    ran = run("convert", ink, "-o", tmp_path / "new", "--to", naming)
    assert ran.code == 0, ran.err
    before, after = deltas(ink), deltas(tmp_path / "new.safetensors")
    assert len(before) == len(after)
    assert sum(float(one.norm()) for one in before.values()) == pytest.approx(
        sum(float(one.norm()) for one in after.values()), rel=1e-3
    )
    assert run("convert", tmp_path / "new.safetensors", "-o", tmp_path / "back", "--to", "kohya").code == 0
    again = deltas(tmp_path / "back.safetensors")
    assert set(again) == set(before)
    for name, delta in before.items():
        assert float((again[name].flatten() - delta.flatten()).norm()) < 2e-3 * float(delta.norm())


def test_the_header_goes_along_but_for_what_is_no_longer_true(run, tmp_path):
    tensors = {
        "lora_unet_mid_block_attentions_0_proj_in.lora_up.weight": torch.ones(8, 4),
        "lora_unet_mid_block_attentions_0_proj_in.lora_down.weight": torch.ones(4, 8),
    }
    told = {"ss_tag_frequency": "{}", "ss_network_dim": "4", "sshs_model_hash": "ab"}
    told["modelspec.trigger_phrase"] = "inkwash"
    save_file(tensors, tmp_path / "a.safetensors", told)
    assert run("resize", tmp_path / "a.safetensors", "-o", tmp_path / "b", "--rank", "2").code == 0
    kept = header(tmp_path / "b.safetensors")
    assert kept["ss_tag_frequency"] == "{}" and kept["modelspec.trigger_phrase"] == "inkwash"
    assert kept["ss_network_dim"] == "1" and "sshs_model_hash" not in kept


def test_a_delta_of_full_rank_is_refused_without_a_rank_and_taken_with_one(run, tmp_path):
    name = "diffusion_model.middle_block.1.proj_in"
    save_file({f"{name}.diff": torch.randn(16, 16)}, tmp_path / "whole.safetensors")
    ran = run("convert", tmp_path / "whole.safetensors", "-o", tmp_path / "plain", "--to", "comfyui")
    assert ran.code == 1 and "no low rank" in ran.err
    words = ("-o", tmp_path / "plain", "--to", "comfyui", "--rank", "5")
    assert run("convert", tmp_path / "whole.safetensors", *words).code == 0
    assert load_file(tmp_path / "plain.safetensors")[f"{name}.lora_down.weight"].shape == (5, 16)


def test_the_input_is_never_replaced_without_force(run, ink):
    before = ink.read_bytes()
    assert run("resize", ink, "-o", ink, "--rank", "2").code == 1
    assert ink.read_bytes() == before


@pytest.mark.parametrize("size", ["9" * 400, "1e9", "0", "-5", "nan", "MB", "1TB"])
def test_a_size_that_is_none_is_a_sentence(run, ink, tmp_path, size):
    ran = run("resize", ink, "-o", tmp_path / "small", f"--size={size}")
    assert ran.code == 1 and "is no size" in ran.err


def test_half_a_character_in_the_header_is_no_traceback(run, ink, tmp_path):
    """A trigger that was cut off in the middle of an emoji."""
    raw = ink.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] = {"modelspec.trigger_phrase": "ink \ud83c", "ss_tag\ud83c": "x"}
    cut = json.dumps(header).encode()
    (tmp_path / "cut.safetensors").write_bytes(len(cut).to_bytes(8, "little") + cut + raw[8 + length :])
    for words in (["resize", "--rank", "2"], ["convert", "--to", "kohya"]):
        ran = run(words[0], tmp_path / "cut.safetensors", "-o", tmp_path / words[0], *words[1:])
        assert ran.code == 0, ran.err
