"""Parts of fused weights of a model that only the host knows: they merge, and are saved under names it maps."""

import numpy as np
import pytest

from lora_alloy.api import load, merge
from lora_alloy.core.errors import SaveError
from lora_alloy.lora.entries import Model
from lora_alloy.lora.stack import Entry, Stack, build_stack
from lora_alloy.lora.target import Part, Route, Target
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.builders import Factors, file_of, noise

SIZE = 24
WEIGHT = "diffusion_model.joint_blocks.0.x_block.attn.qkv"
FUSED = "lora_unet_joint_blocks_0_x_block_attn_qkv"
# SD 3's parts go by the names that Flux's have in diffusers.
PARTS = {
    f"transformer.transformer_blocks.0.attn.to_{letter}": Part(0, place * SIZE, SIZE)
    for place, letter in enumerate("qkv")
}
PLAIN = Recipe(method="weighted_sum", auto_strength=False)


def model(*, has_shapes: bool = True) -> Model:
    parts = {name: Route(Target(WEIGHT, part)) for name, part in PARTS.items()}
    whole = {name: Route(Target(WEIGHT)) for name in (WEIGHT, FUSED)}
    return Model(parts | whole, {WEIGHT: (3 * SIZE, SIZE)} if has_shapes else {})


def split(*letters: str) -> dict[str, Factors]:
    return {name: noise((SIZE, SIZE), 3, seed=n) for n, name in enumerate(PARTS) if name.endswith(letters)}


def stack(*loras: dict[str, Factors], **how: bool) -> Stack:
    entries = [Entry(file_of(lora, f"ink {n}", "peft")) for n, lora in enumerate(loras)]
    return build_stack(entries, model(**how))


def saved(built: Stack, path) -> dict[str, np.ndarray]:
    """What a saved merge adds, by the names in the file."""
    merge(built, PLAIN).save(path)
    file = load(path)
    return {name: file.load(module).dense().numpy() for name, module in file.modules.items()}


def test_a_lora_with_flux_names_for_another_model_is_not_taken_for_flux(tmp_path):
    built = stack(split("q", "k", "v"))
    assert built.family is None
    merge(built, PLAIN).save(tmp_path / "out")
    assert "ss_base_model_version" not in load(tmp_path / "out.safetensors").tensors.metadata


@pytest.mark.parametrize("letters", [("q", "k", "v"), ("q",), ("k", "v")], ids="".join)
def test_split_loras_are_saved_under_their_own_names(letters, tmp_path):
    lora = split(*letters)
    found = saved(stack(lora), tmp_path / "out.safetensors")
    assert found.keys() == lora.keys()
    for name, factors in lora.items():
        np.testing.assert_allclose(found[name], factors.delta, atol=1e-6)


def test_a_fused_and_a_split_lora_meet_and_are_saved_as_one_weight(tmp_path):
    whole, part = noise((3 * SIZE, SIZE), 4, seed=7), split("k")
    found = saved(stack({FUSED: whole}, part), tmp_path / "out.safetensors")
    expected = whole.delta.copy()
    expected[SIZE : 2 * SIZE] += next(iter(part.values())).delta
    assert found.keys() == {WEIGHT}
    np.testing.assert_allclose(found[WEIGHT], expected, atol=1e-6)


def test_where_the_height_is_not_known_no_weight_of_another_height_is_written(tmp_path):
    built = stack({FUSED: noise((3 * SIZE, SIZE), 4)}, split("k"), has_shapes=False)
    with pytest.raises(SaveError, match="its height is not known"):
        merge(built, PLAIN).save(tmp_path / "out.safetensors")
    assert not list(tmp_path.iterdir())
