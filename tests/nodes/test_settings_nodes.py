"""LoRA Optimizer Settings and LoRA Merge Settings: what they emit, and what they take."""

from typing import Any

import pytest

from lora_alloy.core.errors import RecipeError, StackError
from lora_alloy.merging.recipe import Recipe
from lora_alloy.nodes.lora_merge_settings import LoRAMergeSettings
from lora_alloy.nodes.lora_optimizer import LoRAOptimizer
from lora_alloy.nodes.lora_optimizer_settings import LoRAOptimizerSettings
from lora_alloy.nodes.settings import is_lazy, is_on_gpu, recipe_of


def defaults(node: type[Any]) -> dict[str, Any]:
    """The values of a new node's widgets, in their order."""
    inputs = {**node.INPUT_TYPES()["required"], **node.INPUT_TYPES()["optional"]}
    return {
        name: one[1]["default"]
        for name, one in inputs.items()
        if len(one) > 1 and "default" in one[1] and not one[1].get("forceInput")
    }


def emitted(**changed: Any) -> dict[str, Any]:
    """OPTIMIZER_SETTINGS of a new node with some widgets changed."""
    return LoRAOptimizerSettings().build_settings(**(defaults(LoRAOptimizerSettings) | changed))[0]


def test_widgets_stand_where_saved_workflows_expect_them() -> None:
    assert list(defaults(LoRAMergeSettings)) == [
        "normalize_keys",
        "architecture_preset",
        "auto_strength_floor",
        "decision_smoothing",
        "smooth_slerp_gate",
        "vram_budget",
        "cache_patches",
        "auto_strength_floor_mode",
        "star_eta",
        "tame_layers",
        "tame_threshold",
    ]
    assert list(defaults(LoRAOptimizerSettings)) == [
        "auto_strength",
        "optimization_mode",
        "merge_refinement",
        "sparsification",
        "sparsification_density",
        "dare_dampening",
        "patch_compression",
        "svd_device",
        "free_vram_between_passes",
        "strategy_set",
    ]


def test_new_settings_nodes_emit_every_key_and_ask_for_the_default_recipe() -> None:
    merge_settings = LoRAMergeSettings().build_settings(**defaults(LoRAMergeSettings))[0]
    assert set(merge_settings) == set(defaults(LoRAMergeSettings)) - {"auto_strength_floor_mode"}
    settings = emitted(merge_settings=merge_settings)
    assert settings == emitted()
    assert settings["mode"] == "advanced" and settings["merge_strategy_override"] == ""
    assert set(settings) == {
        *merge_settings,
        *defaults(LoRAOptimizerSettings),
        "mode",
        "merge_strategy_override",
    }
    assert recipe_of(settings) == Recipe()
    assert is_on_gpu(settings) and not is_lazy(settings)


@pytest.mark.parametrize(
    ("floor", "mode", "expected"),
    [
        (0.85, "auto", -1.0),
        (0.85, "manual", 0.85),
        (-1.0, "manual", -1.0),
        (-0.3, None, -1.0),
        (0.5, None, 0.5),
        (0.0, "manual", 0.0),
        (7, "manual", 1.0),
    ],
)
def test_the_mode_decides_whether_the_floor_is_followed_and_without_one_the_floor_does(
    floor: float, mode: str | None, expected: float
) -> None:
    given = {"auto_strength_floor": floor} | ({} if mode is None else {"auto_strength_floor_mode": mode})
    assert LoRAMergeSettings().build_settings(**given)[0]["auto_strength_floor"] == expected


def test_a_script_may_leave_out_what_came_later() -> None:
    settings = LoRAMergeSettings().build_settings(normalize_keys="enabled", decision_smoothing=0.5)[0]
    assert (settings["star_eta"], settings["tame_layers"], settings["tame_threshold"]) == (100.0, 0.0, 0.3)
    assert recipe_of(emitted(merge_settings=settings)) == Recipe(smoothing=0.5)


def test_what_is_chosen_becomes_the_recipe_and_the_place() -> None:
    merge_settings = {"star_eta": 80.0, "tame_layers": 0.5, "auto_strength_floor": 0.4}
    settings = emitted(
        merge_settings=merge_settings,
        merge_strategy_override="ties",
        sparsification="della",
        patch_compression="lazy",
        svd_device="cpu",
        merge_refinement="refine",
    )
    assert recipe_of(settings) == Recipe(
        method="ties",
        sparsify="della",
        density=0.7,
        enhance="refine",
        compress="disabled",
        star_eta=80.0,
        tame=0.5,
        auto_strength_floor=0.4,
    )
    assert is_lazy(settings) and not is_on_gpu(settings)


@pytest.mark.parametrize("node", [LoRAOptimizer, LoRAOptimizerSettings])
def test_words_of_earlier_versions_are_taken_and_others_refused_in_a_sentence(node: type[Any]) -> None:
    assert node.VALIDATE_INPUTS(optimization_mode="weighted_sum_only", strategy_set="classic") is True
    assert node.VALIDATE_INPUTS(merge_refinement=None) is True
    refused = node.VALIDATE_INPUTS(patch_compression="tiny")
    assert refused == "`patch_compression` is 'tiny'; it must be one of smart, aggressive, disabled, lazy."


def test_what_is_no_settings_is_refused_in_a_sentence() -> None:
    with pytest.raises(RecipeError, match="connect LoRA Merge Settings"):
        emitted(merge_settings=[1])
    with pytest.raises(StackError, match="`auto_strength_floor` is 'loud'"):
        LoRAMergeSettings().build_settings(auto_strength_floor="loud")
