"""What the optimizer and the save node decide before ComfyUI is asked for anything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lora_alloy.core.errors import AlloyError, RecipeError, SaveError, StackError
from lora_alloy.merging.recipe import Recipe
from lora_alloy.nodes import bridge
from lora_alloy.nodes.lora_optimizer import LoRAOptimizer
from lora_alloy.nodes.lora_optimizer_simple import LoRAOptimizerSimple
from lora_alloy.nodes.optimizing import key_map, optimize, shortfall
from lora_alloy.nodes.save_merged_lora import SaveMergedLoRA
from lora_alloy.nodes.settings import recipe_of
from lora_alloy.nodes.tuned import candidate, recipe_of_candidate
from lora_alloy_testing.builders import stack_of
from lora_alloy_testing.flux import HIDDEN, flux_lora, split

Install = Callable[..., Path]
INHERITED = {
    "mode": "advanced",
    "auto_strength": "enabled",
    "optimization_mode": "per_prefix",
    "merge_refinement": "none",
    "sparsification": "disabled",
    "sparsification_density": 0.7,
    "strategy_set": "full",
    "auto_strength_floor": -1.0,
    "merge_strategy_override": "",
}


def widgets(node: type[Any]) -> list[str]:
    """The inputs that occupy a place among a workflow's values, in order."""
    inputs = {**node.INPUT_TYPES()["required"], **node.INPUT_TYPES().get("optional", {})}
    return [
        name
        for name, given in inputs.items()
        if isinstance(given[0], list) or given[0] in ("FLOAT", "INT", "STRING", "BOOLEAN")
        if not (len(given) > 1 and given[1].get("forceInput"))
    ]


def test_widgets_and_outputs_stand_where_saved_workflows_expect_them(install: Install) -> None:
    install("a.safetensors")
    assert widgets(LoRAOptimizerSimple) == [
        "output_strength",
        "clip_strength_multiplier",
        "hold_structural",
    ]
    assert LoRAOptimizerSimple.RETURN_NAMES == ("model", "clip", "analysis_report", "tuner_data", "lora_data")
    assert widgets(SaveMergedLoRA) == [
        "save_folder",
        "filename",
        "save_rank",
        "bake_strength",
        "prompt",
        "description",
    ]
    assert SaveMergedLoRA.OUTPUT_NODE is True


def test_default_settings_are_the_default_recipe() -> None:
    assert recipe_of(INHERITED) == Recipe()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"auto_strength": "disabled"}, Recipe(auto_strength=False)),
        ({"auto_strength_floor": 0.85}, Recipe(auto_strength_floor=0.85)),
        ({"merge_strategy_override": "slerp"}, Recipe(method="slerp")),
        ({"optimization_mode": "additive"}, Recipe(scope="additive")),
        ({"optimization_mode": "weighted_sum_only"}, Recipe(scope="additive")),
        ({"optimization_mode": "global"}, Recipe(scope="global")),
        (
            {"sparsification": "dare", "dare_dampening": 0.3},
            Recipe(sparsify="dare", density=0.7, dampening=0.3),
        ),
        ({"sparsification_density": 0.2}, Recipe()),
        ({"merge_refinement": "full"}, Recipe(enhance="full")),
        ({"merge_quality": "enhanced", "merge_refinement": "refine"}, Recipe(enhance="refine")),
        ({"strategy_set": "basic"}, Recipe(strategy_set="basic")),
        ({"behavior_profile": "classic", "strategy_set": "basic"}, Recipe(strategy_set="basic")),
        ({"merge_strategy_override": "ties"}, Recipe(method="ties")),
        ({"patch_compression": "aggressive"}, Recipe(compress="aggressive")),
        ({"compress_patches": "non_ties"}, Recipe(compress="smart")),
        ({"decision_smoothing": 0.5}, Recipe(smoothing=0.5)),
        ({"star_eta": 80.0, "tame_layers": 0.5}, Recipe(star_eta=80.0, tame=0.5)),
    ],
)
def test_settings_that_this_version_knows_become_a_recipe(changed: dict[str, Any], expected: Recipe) -> None:
    assert recipe_of(INHERITED | changed) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"sparsification": "magnitude"},
        {"merge_refinement": "ultra"},
        {"strategy_set": "all"},
        {"merge_strategy_override": "teis"},
        {"optimization_mode": "both"},
        {"mode": "autotuner"},
    ],
    ids=str,
)
def test_settings_that_this_version_lacks_stop_the_merge_by_name(changed: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=str(next(iter(changed.values())))):
        recipe_of(INHERITED | changed)


@pytest.mark.parametrize("stack", [None, [], [("a", 0.0, 0.0)], [("None", 1.0, 1.0)]], ids=str)
def test_an_idle_stack_hands_model_and_clip_on_and_says_so(stack: object) -> None:
    model, clip = object(), object()
    done = optimize(model, clip, stack, Recipe(), 1.0, 1.0)
    assert done.model is model and done.clip is clip and done.lora_data is None
    assert "unchanged" in done.report


def test_the_widgets_of_the_legacy_node_stand_where_saved_workflows_expect_them() -> None:
    assert widgets(LoRAOptimizer) == [
        "output_strength",
        "clip_strength_multiplier",
        "auto_strength",
        "auto_strength_floor",
        "free_vram_between_passes",
        "vram_budget",
        "optimization_mode",
        "cache_patches",
        "patch_compression",
        "svd_device",
        "normalize_keys",
        "sparsification",
        "sparsification_density",
        "dare_dampening",
        "merge_refinement",
        "strategy_set",
        "architecture_preset",
        "settings_source",
        "decision_smoothing",
        "smooth_slerp_gate",
        "hold_structural",
    ]
    assert LoRAOptimizer.RETURN_NAMES == LoRAOptimizerSimple.RETURN_NAMES


def test_the_defaults_of_the_legacy_node_are_the_default_recipe() -> None:
    inputs = LoRAOptimizer.INPUT_TYPES()
    given = {**inputs["required"], **inputs["optional"]}
    assert (
        recipe_of({name: one[1]["default"] for name, one in given.items() if "default" in one[1]}) == Recipe()
    )


def test_a_tuning_result_without_a_configuration_is_refused_and_not_ignored() -> None:
    with pytest.raises(RecipeError, match="holds no configuration"):
        LoRAOptimizerSimple().execute_simple(object(), [], tuner_data={"top_n": [{}]})


def test_a_candidate_of_a_tuning_result_is_the_recipe_it_was_ranked_by() -> None:
    config = {
        "merge_mode": "ties",
        "sparsification": "dare",
        "sparsification_density": 0.9,
        "dare_dampening": 0.3,
        "merge_refinement": "none",
        "auto_strength": "disabled",
        "optimization_mode": "global",
        "strategy_set": "full",
    }
    found = candidate({"top_n": [{"config": config}], "auto_strength_floor": -1.0, "decision_smoothing": 0.5})
    assert found is not None
    assert recipe_of_candidate(found) == Recipe(
        method="ties",
        scope="global",
        sparsify="dare",
        density=0.9,
        dampening=0.3,
        auto_strength=False,
        smoothing=0.5,
    )
    assert candidate(None) is None and candidate({"top_n": []}) is None


@pytest.mark.parametrize(
    "name", ["../out", "/etc/out", "a/../../out", "..", "", "  ", "x\0y", ".safetensors"]
)
def test_a_name_that_leads_out_of_the_folder_or_is_none_is_refused(install: Install, name: str) -> None:
    root = install("a.safetensors")
    with pytest.raises(SaveError):
        bridge.save_path(str(root), name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("out", "out.safetensors"), ("a/b.SAFETENSORS", "a/b.SAFETENSORS"), ("a\\b", "a/b.safetensors")],
)
def test_a_name_may_have_sub_folders_and_gets_its_ending(install: Install, name: str, expected: str) -> None:
    root = install("a.safetensors")
    assert bridge.save_path(str(root), name) == root / expected


def test_a_folder_of_another_machine_gives_way_to_the_first_one_here(install: Install) -> None:
    root = install("a.safetensors")
    assert bridge.save_path("D:\\loras", "out") == root / "out.safetensors"
    assert SaveMergedLoRA.VALIDATE_INPUTS(save_folder="D:\\loras") is True


def test_lora_data_name_every_target_and_the_whole_of_a_fused_weight() -> None:
    stack = stack_of(split(flux_lora(1)))
    named = key_map(stack, [group.target for group in stack.groups])
    qkv = "diffusion_model.double_blocks.0.img_attn.qkv"
    parts = {key: told["canonical_prefix"] for key, told in named.items() if key[0] == f"{qkv}.weight"}
    assert {key[1][:2]: name.rpartition(".")[2] for key, name in parts.items()} == {
        (0, 0): "to_q",
        (0, HIDDEN): "to_k",
        (0, 2 * HIDDEN): "to_v",
    }
    assert named[f"{qkv}.weight"] == {"canonical_prefix": qkv}
    prefixes = [told["canonical_prefix"] for told in named.values()]
    assert len(set(prefixes)) == len(prefixes)


class Picky:
    """An owner of weights that knows only some of them, and drops the rest without a word as ComfyUI does."""

    def __init__(self, known: set[Any]) -> None:
        self.known = known

    def clone(self) -> "Picky":
        return Picky(self.known)

    def add_patches(self, patches: dict[Any, Any], strength: float) -> list[Any]:
        assert strength == 0.5
        return [key for key in patches if key in self.known]


def test_patches_that_comfyui_does_not_take_are_told_by_name_and_share() -> None:
    part = ("b.weight", (0, 0, 8))
    owner = Picky({"a.weight", part})
    clone, lost = bridge.patched(owner, dict.fromkeys(["a.weight", part, ("c.weight", (0, 8, 8))]), 0.5)
    assert clone is not owner and lost == ["c.weight"]
    assert shortfall(lost, 3) == ["ComfyUI did not take 1 of 3 patches (33%): `c.weight`."]
    assert shortfall([], 3) == []


def test_nothing_merged_is_nothing_saved_and_foreign_data_are_refused() -> None:
    assert SaveMergedLoRA().save_lora(None)["result"] == ("",)
    with pytest.raises(SaveError, match="not of this pack"):
        SaveMergedLoRA().save_lora({"model_patches": {}})


def test_what_the_nodes_raise_is_a_sentence_for_the_user() -> None:
    assert issubclass(SaveError, AlloyError) and issubclass(StackError, AlloyError)
