"""Fused and split attention meet on the coarsest common partition, and the result is the dense merge."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lora_alloy.api import merge
from lora_alloy.core.errors import StackError
from lora_alloy.lora import keys
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.merging.methods import METHODS
from lora_alloy.merging.patch import Patch
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing import reference
from lora_alloy_testing.builders import (
    Factors,
    dense,
    difference,
    entry_of,
    file_of,
    largest_difference,
    noise,
    write_lora,
)
from lora_alloy_testing.flux import HIDDEN, PARTS, SIZES, SWAPPED, flux_lora, fused, row_parts, split
from lora_alloy_testing.reference import Voice

EXACT = 3e-6
PLAIN = Recipe(method="weighted_sum", auto_strength=False)


def native(modules: dict[str, Factors], is_cut: bool = True) -> dict[str, np.ndarray]:
    """Dense deltas by target; fused weights cut into their parts if `is_cut`."""
    found: dict[str, np.ndarray] = {}
    for name, factors in modules.items():
        parts = row_parts(name, factors.up.shape[0])
        if not parts or not is_cut:
            found[f"diffusion_model.{name}"] = factors.delta
        for rows in parts.values() if is_cut else ():
            found[f"diffusion_model.{name}[{rows.start}:{rows.stop}]"] = factors.delta[rows]
    return found


def on_whole_weights(patches: list[Patch]) -> dict[str, np.ndarray]:
    """What patches add to each whole weight, parts in their rows."""
    found: dict[str, np.ndarray] = {}
    for patch in patches:
        delta = patch.up.double().numpy() @ patch.down.double().numpy()
        name = patch.target.weight
        part = patch.target.part
        if part is None:
            found[name] = found.get(name, 0) + delta
            continue
        rows = SIZES[name.removeprefix("diffusion_model.")][0] * HIDDEN
        whole = found.setdefault(name, np.zeros((rows, delta.shape[1])))
        whole[part.start : part.start + part.length] += delta
    return found


@pytest.fixture
def trio(tmp_path: Path) -> tuple[list[Path], list[dict[str, Factors]]]:
    """Three LoRAs: fused by kohya, split by diffusers, split by ai-toolkit with ranks and an alpha of its own."""
    loras = [flux_lora(1, alpha=2.0), flux_lora(2, rank=3), flux_lora(3, rank=6)]
    paths = [
        write_lora(tmp_path / "kohya.safetensors", fused(loras[0])),
        write_lora(tmp_path / "diffusers.safetensors", split(loras[1]), "peft"),
        write_lora(tmp_path / "toolkit.safetensors", split(loras[2]), "peft", {"software": "{}"}),
    ]
    return paths, loras


def test_the_hidden_width_of_a_toy_flux_is_found_in_either_naming(trio):
    for path in trio[0]:
        families = entry_of(path).file.families
        assert families[0].key == "flux"
        assert families[0].hidden == HIDDEN


def test_a_fused_and_two_split_loras_meet_and_equal_the_dense_merge(trio):
    paths, loras = trio
    strengths = (0.8, -0.5, 1.2)
    result = merge([entry_of(path, w) for path, w in zip(paths, strengths, strict=True)], PLAIN)
    expected = {
        name: sum(w * native(lora, is_cut=False)[name] for w, lora in zip(strengths, loras, strict=True))
        for name in native(loras[0], is_cut=False)
    }
    assert largest_difference(on_whole_weights(list(result)), expected) < EXACT
    assert all(set(target.entries) == {0, 1, 2} for target in result.plan.targets)


@pytest.mark.parametrize("method", [*METHODS, "auto"])
def test_every_method_blends_part_by_part_as_the_reference_does(method, trio):
    paths, loras = trio
    voices = [Voice(native(lora), w) for lora, w in zip(loras, (0.8, -0.5, 1.2), strict=True)]
    result = merge(
        [entry_of(p, w) for p, w in zip(paths, (0.8, -0.5, 1.2), strict=True)],
        Recipe(method=method, **reference.PLAIN),
    )
    expected = reference.merge(voices, method, scale_to="mean" if method == "auto" else "none")
    assert largest_difference(dense(result), expected) < EXACT


def test_fused_loras_among_themselves_stay_whole(tmp_path):
    paths = [write_lora(tmp_path / f"{n}.safetensors", fused(flux_lora(n))) for n in (1, 2)]
    stack = build_stack([entry_of(path) for path in paths])
    assert all(group.target.part is None for group in stack.groups)
    assert len(stack.groups) == len(SIZES)


def test_a_part_that_only_the_fused_lora_changes_is_merged_alone(tmp_path):
    """The split LoRA has q and the mlp of linear1 only; k and v come from the fused one alone."""
    whole, other = flux_lora(1), flux_lora(2)
    some = {name: one for name, one in split(other).items() if not name.endswith(("to_k", "to_v", "_k_proj"))}
    paths = [
        write_lora(tmp_path / "fused.safetensors", fused(whole)),
        write_lora(tmp_path / "some.safetensors", some, "peft"),
    ]
    result = merge([entry_of(path) for path in paths], PLAIN)
    one, two = native(whole), native(other)
    lonely = {
        f"diffusion_model.{name}[{rows.start}:{rows.stop}]"
        for name in PARTS
        for part, rows in row_parts(name, SIZES[name][0] * HIDDEN).items()
        if part.endswith(("to_k", "to_v", "_k_proj"))
    }
    expected = {name: one[name] + (0 if name in lonely else two[name]) for name in one}
    assert largest_difference(dense(result), expected) < EXACT
    assert len(lonely) == 5


@pytest.mark.parametrize("preserved", [0, 1])
def test_preserve_holds_across_the_partition(preserved, trio):
    paths, loras = trio
    flags = [place == preserved for place in range(3)]
    voices = [Voice(native(lora), 0.9, preserve=flag) for lora, flag in zip(loras, flags, strict=True)]
    entries = [entry_of(path, 0.9, preserve=flag) for path, flag in zip(paths, flags, strict=True)]
    assert largest_difference(dense(merge(entries)), reference.merge(voices, "auto", scale_to="mean")) < EXACT


def test_diffusers_scale_and_shift_are_exchanged_on_the_way(tmp_path):
    """Its last modulation holds scale above shift; Flux's own holds shift above scale."""
    lora = {
        SWAPPED: flux_lora(1)[SWAPPED],
        "double_blocks.0.img_attn.proj": flux_lora(1)["double_blocks.0.img_attn.proj"],
    }
    path = write_lora(tmp_path / "split.safetensors", split(lora), "peft")
    found = dense(merge([path], PLAIN))[f"diffusion_model.{SWAPPED}"]
    assert difference(found, lora[SWAPPED].delta) < EXACT
    stored = split(lora)["transformer.norm_out.linear"].delta
    np.testing.assert_allclose(stored[:HIDDEN], lora[SWAPPED].delta[HIDDEN:])


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_parts_and_swaps_work_in_narrow_dtypes(dtype, tmp_path):
    lora = {
        name: Factors((10 * one.up).to(dtype), (10 * one.down).to(dtype))
        for name, one in flux_lora(1).items()
    }
    other = write_lora(tmp_path / "other.safetensors", fused(flux_lora(2)))
    path = write_lora(tmp_path / "narrow.safetensors", split(lora), "peft")
    result = merge([entry_of(path), entry_of(other, 1e-9)], PLAIN)
    wide = {name: Factors(one.up.float(), one.down.float()) for name, one in lora.items()}
    assert largest_difference(dense(result), native(wide)) < 1e-5


class TestTwoNamingsInOneFile:
    """Seen on model sites: the same LoRA under PEFT's and kohya's names at once. It counts once."""

    def both(self, lora: dict[str, Factors]) -> dict[str, Factors]:
        return fused(lora) | split(lora)

    def test_fused_and_split_names_of_one_lora_count_once(self):
        lora = flux_lora(1, alpha=2.0)
        stack = build_stack([Entry(file_of(self.both(lora)))])
        found = dense(merge(stack, PLAIN))
        whole = {name: found.get(f"diffusion_model.{name}") for name in SIZES}
        assert (
            difference(
                np.concatenate([d for t, d in found.items() if ".linear1" in t]),
                lora["single_blocks.0.linear1"].delta,
            )
            < EXACT
        )
        assert difference(whole["double_blocks.0.img_mlp.0"], lora["double_blocks.0.img_mlp.0"].delta) < EXACT
        assert any("under two names" in note for note in stack.notes)

    def test_a_folded_alpha_is_the_same_lora_too(self):
        """PEFT's half has alpha folded into its up factor: other tensors, the same delta."""
        lora = flux_lora(1, alpha=2.0)
        folded = {name: Factors(one.up * (2.0 / 4), one.down) for name, one in split(lora).items()}
        found = dense(merge(build_stack([Entry(file_of(fused(lora) | folded))]), PLAIN))
        expected = native(lora)
        assert all(difference(found[name], expected[name]) < EXACT for name in found if "linear1[" in name)

    def test_half_precision_beside_full_is_the_same_lora(self):
        lora = flux_lora(1)
        rounded = {name: Factors(one.up.half(), one.down.half()) for name, one in split(lora).items()}
        stack = build_stack([Entry(file_of(fused(lora) | rounded))])
        assert any("under two names" in note for note in stack.notes)

    def test_different_values_under_two_names_are_refused_by_name(self):
        first, second = flux_lora(1), flux_lora(2)
        with pytest.raises(StackError, match="different values") as problem:
            build_stack([Entry(file_of(fused(first) | split(second)))])
        assert "lora_unet_" in str(problem.value)
        assert "transformer." in str(problem.value)

    def test_flattened_and_dotted_names_of_one_weight_count_once(self):
        factors = noise((24, 16), 4, seed=1)
        names = (
            "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
            "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
        )
        stack = build_stack([Entry(file_of(dict.fromkeys(names, factors)))])
        (found,) = dense(merge(stack, PLAIN)).values()
        assert difference(found, factors.delta) < EXACT
        assert any("under two names" in note for note in stack.notes)


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        ("transformer.transformer_blocks.0.attn.to_q", (40, 32)),
        ("lora_unet_double_blocks_0_img_attn_qkv", (100, 32)),
    ],
)
def test_a_part_or_whole_of_the_wrong_height_is_named_before_anything_is_merged(wrong, shape, tmp_path):
    modules = (fused if wrong.startswith("lora_unet") else split)(flux_lora(1))
    modules[wrong] = noise(shape, 4, seed=1)
    first = write_lora(tmp_path / "wrong.safetensors", modules, "peft")
    other = (split if wrong.startswith("lora_unet") else fused)(flux_lora(2))
    second = write_lora(tmp_path / "sound.safetensors", other)
    with pytest.raises(StackError, match="does not fit together") as problem:
        build_stack([entry_of(first), entry_of(second)])
    assert "wrong.safetensors" in str(problem.value)
    assert "img_attn.qkv" in str(problem.value)


def test_a_part_of_the_wrong_height_is_refused_even_alone(tmp_path):
    """Nothing in the stack contradicts it, but the slice it would be added to has other rows."""
    modules = split(flux_lora(1))
    modules["transformer.transformer_blocks.0.attn.to_q"] = noise((40, 32), 4, seed=1)
    path = write_lora(tmp_path / "wrong.safetensors", modules, "peft")
    with pytest.raises(StackError, match=r"`wrong.safetensors` has \(40, 32\)"):
        build_stack([entry_of(path)])


def test_a_lora_of_text_encoders_alone_goes_with_a_flux_of_any_width(tmp_path):
    text = {"lora_te1_text_model_encoder_layers_0_mlp_fc1": noise((20, 12), 2, seed=1)}
    paths = [
        write_lora(tmp_path / "text.safetensors", text),
        write_lora(tmp_path / "flux.safetensors", fused(flux_lora(1))),
    ]
    for order in (paths, paths[::-1]):
        stack = build_stack([entry_of(path) for path in order])
        assert (
            stack.family
            == keys.candidates(
                {name: (tuple(f.up.shape), tuple(f.down.shape)) for name, f in fused(flux_lora(1)).items()}
            )[0]
        )
        assert len(stack.groups) == len(SIZES) + 1


def test_two_widths_of_flux_do_not_fit_together_and_it_says_so(tmp_path):
    paths = [
        write_lora(tmp_path / f"{hidden}.safetensors", fused(flux_lora(1, hidden=hidden)))
        for hidden in (32, 64)
    ]
    with pytest.raises(StackError, match="32.safetensors") as problem:
        build_stack([entry_of(path) for path in paths])
    assert "64.safetensors" in str(problem.value)
    assert "mixes LoRAs of 1 model families" not in str(problem.value)
