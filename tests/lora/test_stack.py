"""Stacks: what is added up, left out, refused, and said; nothing depends on the order of the entries."""

from itertools import permutations
from pathlib import Path

import pytest

from lora_alloy.core.errors import StackError
from lora_alloy.lora.stack import Entry, Model, Stack, build_stack
from lora_alloy.lora.target import Part, Route, Target
from lora_alloy_testing.builders import TOY, Factors, entry_of, file_of, noise, toy_lora, write_lora
from lora_alloy_testing.flux import flux_lora, fused

SD15 = {"lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k": (32, 768)}
SDXL = {"lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k": (32, 2048)}


def lora_on(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Factors]:
    return {name: noise(shape, 4, seed=seed + n) for n, (name, shape) in enumerate(shapes.items())}


def files(tmp_path: Path, **loras: dict[str, Factors]) -> dict[str, Path]:
    return {name: write_lora(tmp_path / f"{name}.safetensors", lora) for name, lora in loras.items()}


class TestDuplicates:
    def test_are_added_up_and_said(self, tmp_path):
        path = files(tmp_path, ink=toy_lora(1))["ink"]
        stack = build_stack([entry_of(path, 0.5, 0.2), entry_of(path, 0.25)])
        assert [(entry.strength, entry.clip_strength) for entry in stack.entries] == [(0.75, 0.45)]
        assert stack.notes == (
            "`ink.safetensors` stands 2 times in the stack; its strengths are added to 0.75 (CLIP 0.45).",
        )

    def test_are_told_by_content_not_by_name(self, tmp_path):
        path = files(tmp_path, ink=toy_lora(1))["ink"]
        copy = tmp_path / "copy.safetensors"
        copy.write_bytes(path.read_bytes())
        assert len(build_stack([entry_of(path), entry_of(copy)]).entries) == 1

    def test_go_by_the_same_name_in_every_order(self, tmp_path):
        paths = files(tmp_path, ink=toy_lora(1), copy=toy_lora(1))
        labels = {
            build_stack([entry_of(paths[name]) for name in order]).entries[0].file.label
            for order in permutations(("ink", "copy"))
        }
        assert labels == {"copy.safetensors"}

    def test_of_which_one_is_preserved_stay_two(self, tmp_path):
        path = files(tmp_path, ink=toy_lora(1))["ink"]
        stack = build_stack([entry_of(path), entry_of(path, preserve=True)])
        assert len(stack.entries) == 2
        assert stack.notes == ()

    def test_that_cancel_are_left_out(self, tmp_path):
        paths = files(tmp_path, ink=toy_lora(1), other=toy_lora(2))
        stack = build_stack([entry_of(paths["ink"]), entry_of(paths["other"]), entry_of(paths["ink"], -1.0)])
        assert [entry.file.label for entry in stack.entries] == ["other.safetensors"]
        assert any("has strength 0" in note for note in stack.notes)

    def test_add_up_alike_in_every_order(self, tmp_path):
        """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in the last bit, unless summed with care."""
        path = files(tmp_path, ink=toy_lora(1))["ink"]
        sums = {
            build_stack([entry_of(path, w) for w in order]).entries[0].strength
            for order in permutations([0.1, 0.2, 0.3, -0.7, 1e-3])
        }
        assert len(sums) == 1


class TestRefusals:
    def test_an_empty_stack(self):
        with pytest.raises(StackError, match="The stack is empty"):
            build_stack([])

    def test_a_stack_without_any_strength(self, tmp_path):
        path = files(tmp_path, ink=toy_lora(1))["ink"]
        with pytest.raises(StackError, match="The stack is empty"):
            build_stack([entry_of(path, 0.0)])

    @pytest.mark.parametrize("strength", [float("nan"), float("inf"), float("-inf")])
    def test_a_strength_that_is_no_number(self, strength, tmp_path):
        path = files(tmp_path, ink=toy_lora(1))["ink"]
        for entry in (entry_of(path, strength), entry_of(path, 1.0, strength)):
            with pytest.raises(StackError, match="The strength of `ink.safetensors` is"):
                build_stack([entry])

    def test_sd15_beside_sdxl_naming_every_file(self, tmp_path):
        paths = files(tmp_path, a=lora_on(SD15), b=lora_on(SDXL), c=lora_on(SD15, 9), d=fused(flux_lora(1)))
        with pytest.raises(StackError) as problem:
            build_stack([entry_of(path) for path in paths.values()])
        for words in ("3 model families", "Stable Diffusion 1.5: `a.safetensors`, `c.safetensors`"):
            assert words in str(problem.value)
        for words in ("Stable Diffusion XL: `b.safetensors`", "Flux.1: `d.safetensors`"):
            assert words in str(problem.value)

    def test_mismatched_shapes_are_all_named_in_one_message(self, tmp_path):
        wrong = {name: noise((shape[0] + 2, *shape[1:]), 4, seed=1) for name, (_, shape) in TOY.items()}
        paths = files(tmp_path, sound=toy_lora(1), wrong=wrong)
        with pytest.raises(StackError, match="does not fit together") as problem:
            build_stack([entry_of(path) for path in paths.values()])
        for target, shape in TOY.values():
            assert target in str(problem.value)
            assert str(shape) in str(problem.value)
        assert "sound.safetensors" in str(problem.value)
        assert "wrong.safetensors" in str(problem.value)

    def test_of_very_many_mismatches_the_number_is_said(self, tmp_path):
        names = {f"lora_unet_blocks_{block}_q": (24, 16) for block in range(12)}
        wrong = {name: noise((26, 16), 4, seed=1) for name in names}
        paths = files(tmp_path, sound=lora_on(names), wrong=wrong)
        with pytest.raises(StackError, match="and 8 more"):
            build_stack([entry_of(path) for path in paths.values()])

    def test_a_linear_and_a_flat_convolution_on_one_weight_fit(self, tmp_path):
        """kohya writes `(o, r, 1, 1)` for linear maps at times; it is the same delta."""
        name = "lora_unet_blocks_0_q"
        paths = files(tmp_path, linear={name: noise((24, 16), 4)}, conv={name: noise((24, 16, 1, 1), 4)})
        assert len(build_stack([entry_of(path) for path in paths.values()]).groups) == 1


class TestAgainstAModel:
    """What a host knows of its model decides names and shapes."""

    NAME, (WEIGHT, SHAPE) = next(iter(TOY.items()))

    def model(self, shape: tuple[int, ...] = (24, 16), part: Part | None = None) -> Model:
        return Model({self.NAME: Route(Target(self.WEIGHT, part))}, {self.WEIGHT: shape})

    def test_modules_that_it_lacks_are_left_out_and_their_share_is_said(self):
        stack = build_stack([Entry(file_of(toy_lora(1)))], self.model())
        assert [group.target.weight for group in stack.groups] == [self.WEIGHT]
        assert len(stack.unmatched[0]) == 3
        assert any("3 of 4 modules (75%)" in note for note in stack.notes)

    def test_a_shape_that_is_not_its_own_is_refused(self):
        with pytest.raises(StackError, match=r"`ink` has \(24, 16\) on .*, the model has \(30, 16\)"):
            build_stack([Entry(file_of(toy_lora(1)))], self.model((30, 16)))

    def test_a_lora_of_which_nothing_fits_is_refused(self):
        with pytest.raises(StackError, match="none of its 1 modules is in this model"):
            build_stack([Entry(file_of(lora_on(SDXL)))], self.model())

    def test_text_encoders_alone_without_a_clip_ask_for_it(self):
        text = [name for name, (target, _) in TOY.items() if target.startswith("text_encoders.")]
        model = Model({self.NAME: Route(Target(self.WEIGHT))}, {self.WEIGHT: (24, 16)}, has_clip=False)
        with pytest.raises(StackError, match="no CLIP is connected. Connect the CLIP"):
            build_stack([Entry(file_of(toy_lora(1, names=text)))], model)

    def test_its_own_map_leads_to_parts(self):
        stack = build_stack([Entry(file_of(toy_lora(1)))], self.model((72, 16), Part(0, 24, 24)))
        assert stack.groups[0].target == Target(self.WEIGHT, Part(0, 24, 24))

    def test_a_part_of_another_height_is_refused(self):
        with pytest.raises(StackError, match=r"has \(24, 16\) on .*\[24:54\]"):
            build_stack([Entry(file_of(toy_lora(1)))], self.model((90, 16), Part(0, 24, 30)))


def shape_of(stack: Stack) -> object:
    """All of a stack that must not depend on the order of its entries."""
    labels = [entry.file.label for entry in stack.entries]
    groups = [
        (group.target, group.shape, [(labels[one.entry], one.module.name) for one in group.contributions])
        for group in stack.groups
    ]
    return groups, stack.family, dict(stack.spellings)


def orders(paths: dict[str, Path]) -> list[object]:
    return [
        shape_of(build_stack([entry_of(path) for path in order])) for order in permutations(paths.values())
    ]


def test_groups_do_not_depend_on_the_order_of_the_stack(tmp_path):
    paths = files(tmp_path, a=toy_lora(1), b=toy_lora(2, names=list(TOY)[1:]), c=toy_lora(3))
    first, *others = orders(paths)
    assert all(other == first for other in others)


def test_the_family_of_text_encoders_alone_does_not_depend_on_the_order_of_the_stack(tmp_path):
    """kohya writes `lora_te_` for SD 1.5 and `lora_te1_` for SDXL; either could be of both."""
    name = "text_model_encoder_layers_0_mlp_fc1"
    paths = files(
        tmp_path,
        a={f"lora_te_{name}": noise((20, 12), 2, seed=1)},
        b={f"lora_te1_{name}": noise((20, 12), 2, seed=2)},
        c={
            f"text_encoder.{name.replace('_layers_0_mlp_', '.layers.0.mlp.').replace('l_e', 'l.e')}": noise(
                (20, 12), 2
            )
        },
    )
    first, *others = orders(paths)
    assert all(other == first for other in others)
    assert len(first[0]) == 1  # type: ignore[index]


def test_the_spelling_of_an_unknown_module_does_not_depend_on_the_order_of_the_stack(tmp_path):
    spellings = ("blocks.0.attn.q", "diffusion_model.blocks.0.attn.q", "lora_unet_blocks_0_attn_q")
    paths = files(
        tmp_path, **{f"f{n}": {name: noise((24, 16), 4, seed=n)} for n, name in enumerate(spellings)}
    )
    first, *others = orders(paths)
    assert all(other == first for other in others)
    assert list(first[2].values()) == ["diffusion_model.blocks.0.attn.q"]  # type: ignore[index]


def test_targets_stand_model_first_and_block_ten_after_block_nine(tmp_path):
    names = {
        f"lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn{n}_to_q": (24, 16) for n in (2, 1)
    }
    text = {f"lora_te_text_model_encoder_layers_{n}_mlp_fc1": (20, 12) for n in (10, 9, 1)}
    stack = build_stack([entry_of(files(tmp_path, a=lora_on({**text, **names}))["a"])])
    assert [
        group.target.weight.removeprefix("text_encoders.clip_l.transformer.") for group in stack.groups
    ] == [
        "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q",
        "diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_q",
        "text_model.encoder.layers.1.mlp.fc1",
        "text_model.encoder.layers.9.mlp.fc1",
        "text_model.encoder.layers.10.mlp.fc1",
    ]


def test_strengths_apply_by_branch():
    file = file_of(toy_lora(1))
    model, text = Target("diffusion_model.a"), Target("text_encoders.clip_l.transformer.a")
    assert Entry(file, 0.7).strength_on(text) == 0.7
    assert Entry(file, 0.7, 0.2).strength_on(text) == 0.2
    assert Entry(file, 0.7, 0.2).strength_on(model) == 0.7
    assert Entry(file, 0.7, 0.0).strength_on(text) == 0.0


@pytest.mark.parametrize("step", ["²", "٣", "9" * 5000, "", "-1", "1e5"])
def test_any_step_of_a_name_has_its_place_in_the_order(tmp_path, step):
    names = [f"lora_unet_{step}", f"text_encoders.x.{step}", "lora_unet_a"]
    path = write_lora(tmp_path / "odd.safetensors", lora_on(dict.fromkeys(names, (8, 8))))
    assert len(build_stack([entry_of(path)]).groups) == 3
