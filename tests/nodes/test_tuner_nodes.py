"""The AutoTuner's nodes on a host without ComfyUI: what they emit, replay, remember, refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lora_alloy.autotuner.tuner_data import lora_hash
from lora_alloy.core.errors import AlloyError
from lora_alloy.nodes import session
from lora_alloy.nodes.build_auto_tuner_python_evaluator import BuildAutoTunerPythonEvaluator
from lora_alloy.nodes.load_tuner_data import LoadTunerData
from lora_alloy.nodes.lora_auto_tuner import LoRAAutoTuner
from lora_alloy.nodes.lora_auto_tuner_settings import LoRAAutoTunerSettings
from lora_alloy.nodes.lora_merge_selector import LoRAMergeSelector
from lora_alloy.nodes.lora_merge_settings import LoRAMergeSettings
from lora_alloy.nodes.lora_optimizer import LoRAOptimizer
from lora_alloy.nodes.lora_optimizer_simple import LoRAOptimizerSimple
from lora_alloy.nodes.save_tuner_data import SaveTunerData
from lora_alloy.nodes.tuner_settings import asked_of
from lora_alloy_testing.builders import toy_lora, write_lora
from lora_alloy_testing.fake_host import STACK, FakeHost, Owner, StoppedError, swept, tuned


def same(one: Owner, other: Owner) -> bool:
    """Whether two owners have the same patches, bit for bit."""
    pairs = [(one.patches[name], other.patches[name]) for name in one.patches]
    return one.patches.keys() == other.patches.keys() and all(
        a[1] == b[1] and torch.equal(a[0], b[0]) for a, b in pairs
    )


def widgets_of(node: type[Any]) -> dict[str, Any]:
    inputs = {**node.INPUT_TYPES()["required"], **node.INPUT_TYPES().get("optional", {})}
    return {
        name: given[1]["default"] if "default" in given[1] else given[0][0]
        for name, given in inputs.items()
        if isinstance(given[0], list) or given[0] in ("FLOAT", "INT", "STRING", "BOOLEAN")
    }


def sockets_of(node: type[Any]) -> list[str]:
    inputs = {**node.INPUT_TYPES()["required"], **node.INPUT_TYPES().get("optional", {})}
    return [name for name in inputs if name not in widgets_of(node)]


def test_widgets_and_sockets_stand_where_saved_workflows_expect_them(host: FakeHost) -> None:
    assert widgets_of(LoRAAutoTuner) == {
        "output_strength": 1.0,
        "clip_strength_multiplier": 1.0,
        "top_n": 3,
        "normalize_keys": "enabled",
        "scoring_svd": "disabled",
        "scoring_device": "gpu",
        "architecture_preset": "auto",
        "auto_strength_floor": -1.0,
        "community_cache": "disabled",
        "cache_patches": "enabled",
        "diff_cache_mode": "auto",
        "diff_cache_ram_pct": 0.5,
        "vram_budget": 0.0,
        "scoring_speed": "turbo",
        "scoring_formula": "own_foreign",
        "output_mode": "merge",
        "decision_smoothing": 0.25,
        "smooth_slerp_gate": False,
        "memory_mode": "auto",
        "selection": 1,
    }
    assert list(widgets_of(LoRAAutoTuner))[0] == "output_strength"
    assert sockets_of(LoRAAutoTuner) == ["model", "lora_stack", "clip", "evaluator"]
    assert list(widgets_of(LoRAMergeSelector)) == [
        *("selection", "output_strength", "clip_strength_multiplier"),
        *("auto_strength_floor", "decision_smoothing", "vram_budget"),
    ]
    assert sockets_of(LoRAMergeSelector) == ["model", "lora_stack", "tuner_data", "clip"]
    assert list(widgets_of(LoRAAutoTunerSettings)) == [
        *("top_n", "scoring_svd", "scoring_device", "scoring_speed", "scoring_formula"),
        *("diff_cache_mode", "diff_cache_ram_pct", "community_cache", "memory_mode", "selection"),
    ]
    assert sockets_of(LoRAAutoTunerSettings) == ["merge_settings", "evaluator"]
    assert list(widgets_of(SaveTunerData)) == [
        "save_folder",
        "filename",
        "overwrite",
        "prompt",
        "description",
    ]
    assert list(widgets_of(BuildAutoTunerPythonEvaluator)) == [
        *("module_path", "callable_name", "combine_mode", "weight", "context_json")
    ]
    assert SaveTunerData.OUTPUT_NODE is True
    assert LoRAMergeSelector.RETURN_NAMES == ("model", "clip", "report", "lora_data")
    assert LoadTunerData.RETURN_NAMES == ("tuner_data", "prompt", "description", "metadata_info")


def test_every_rank_is_replayed_bit_for_bit_by_selection_and_by_the_selector_and_from_a_file(
    host: FakeHost,
) -> None:
    best = tuned(host)
    assert swept(host)
    path = SaveTunerData().save_tuner_data(best["tuner_data"], "", "sub/result")["result"][0]
    data = LoadTunerData().load_tuner_data("sub/result.tuner")[0]
    assert data == json.loads(Path(path).read_text()) == best["tuner_data"]
    found = []
    for rank in (1, 2, 3):
        session._tunings.clear()
        fresh = tuned(host, selection=rank, cache_patches="disabled")
        again = LoRAMergeSelector().select_merge(host.model, STACK, data, rank, clip=host.clip)
        assert fresh["model"].patches and fresh["clip"].patches
        assert same(fresh["model"], again[0]) and same(fresh["clip"], again[1])
        assert again[3] is not None and f"Rank {rank}" in again[2] and "Note" not in again[2].split("\n\n")[0]
        found.append(fresh["model"])
    assert same(found[0], best["model"])
    assert not same(found[0], found[1])
    for outputs in (
        LoRAOptimizerSimple().execute_simple(host.model, STACK, clip=host.clip, tuner_data=data),
        LoRAOptimizer().execute_node(
            host.model, STACK, clip=host.clip, tuner_data=data, settings_source="from_tuner_data"
        )["result"],
    ):
        assert same(outputs[0], best["model"]) and same(outputs[1], best["clip"])


def test_a_formula_is_replayed_bit_for_bit(host: FakeHost) -> None:
    stack = [*STACK, {"_merge_formula": "(1+2):0.7 + 3"}]
    found = tuned(host, stack, selection=2)
    again = LoRAMergeSelector().select_merge(host.model, stack, found["tuner_data"], 2, clip=host.clip)
    assert same(found["model"], again[0]) and same(found["clip"], again[1])
    flat = LoRAMergeSelector().select_merge(host.model, STACK, found["tuner_data"], 2, clip=host.clip)
    assert not same(flat[0], again[0])


def test_the_same_stack_and_settings_are_not_tried_again(host: FakeHost) -> None:
    first = tuned(host)
    assert swept(host)
    second = tuned(host, selection=2, output_strength=0.5)
    assert not swept(host)
    assert second["tuner_data"] == first["tuner_data"] and "tuned before" in second["report"]
    third = tuned(host, output_strength=0.5)
    assert not swept(host)
    assert {name: one[0].tolist() for name, one in third["model"].patches.items()} == {
        name: one[0].tolist() for name, one in first["model"].patches.items()
    }
    for changed in (
        {"stack": [STACK[1], STACK[0], STACK[2]]},
        {"stack": [(STACK[0][0], 0.9, 1.0), *STACK[1:]]},
        {"stack": [(*STACK[0], "all", "all", True), *STACK[1:]]},
        {"top_n": 2},
        {"decision_smoothing": 0.5},
        {"scoring_formula": "v1 (legacy)"},
        {"memory_mode": "clear_and_run"},
        {"cache_patches": "disabled"},
    ):
        tuned(host, **changed)
        assert swept(host), changed
    host.model = Owner(type(host.model.model)())
    tuned(host)
    assert swept(host)


def test_what_is_remembered_outlives_the_process(host: FakeHost, install: Any) -> None:
    first = tuned(host, memory_mode="auto")
    assert swept(host)

    def restarted(**widgets: Any) -> dict[str, Any]:
        session._tunings.clear()
        session._hashes.clear()
        host.model = Owner(type(host.model.model)())
        return tuned(host, **{"memory_mode": "auto", **widgets})

    second = restarted()
    assert not swept(host)
    assert second["tuner_data"] == first["tuner_data"] and "tuned before" in second["report"]
    assert same(second["model"], first["model"]) and same(second["clip"], first["clip"])
    assert same(restarted(selection=2)["model"], tuned(host, selection=2, memory_mode="disabled")["model"])
    swept(host)
    # Another name is the same LoRA; the result tells the names of now.
    folder = install()
    (folder / "ink.safetensors").rename(folder / "pen.safetensors")
    named = [("pen.safetensors", *STACK[0][1:]), *STACK[1:]]
    renamed = restarted(stack=named)
    assert not swept(host)
    assert same(renamed["model"], first["model"])
    assert renamed["tuner_data"]["lora_hash"] == lora_hash([(one[0], one[1]) for one in named])
    assert renamed["tuner_data"]["source_loras"][0]["name"] == "pen.safetensors"
    for changed in (
        {"stack": [(*named[0][:1], 0.9, 1.0), *named[1:]]},
        {"stack": [named[1], named[0], named[2]]},
        {"stack": [(*named[0], "all", "all", True), *named[1:]]},
        {"top_n": 2},
        {"memory_mode": "disabled"},
        {"memory_mode": "clear_and_run"},
    ):
        restarted(**{"stack": named, **changed})
        assert swept(host), changed
    louder = [(*named[0][:1], 0.7, 0.7), *named[1:]]
    loose = restarted(stack=louder, memory_mode="auto_ignore_strength")
    assert not swept(host)
    assert loose["tuner_data"]["source_loras"][0]["strength"] == 0.7


def test_read_only_memory_is_read_and_not_written(host: FakeHost) -> None:
    tuned(host, memory_mode="read_only")
    assert swept(host)
    tuned(host, memory_mode="read_only", cache_patches="disabled")
    assert swept(host)
    tuned(host, memory_mode="auto", cache_patches="disabled")
    assert swept(host)
    tuned(host, memory_mode="read_only", cache_patches="disabled")
    assert not swept(host)


def test_a_lora_replaced_under_its_name_is_tuned_anew(host: FakeHost, install: Any) -> None:
    tuned(host)
    write_lora(install() / "ink.safetensors", toy_lora(9, rank=2))
    host.told.clear()
    tuned(host)
    assert swept(host)


@pytest.mark.parametrize(
    "at",
    [("analyse", 2), ("compare", 2), ("predict", 9), ("plan", 2), ("merge", 7), ("score", 2), ("merge", 18)],
    ids=str,
)
def test_cancelling_in_any_phase_keeps_nothing(host: FakeHost, at: tuple[str, int]) -> None:
    host.stop_at = at
    with pytest.raises(StoppedError):
        tuned(host, selection=3, scoring_formula="v2 (legacy)")  # so that all three are merged
    assert not session._tunings
    host.stop_at = None
    host.told.clear()
    tuned(host, selection=3, scoring_formula="v2 (legacy)")
    assert swept(host)


def test_progress_is_told_for_no_more_passes_than_were_announced(host: FakeHost) -> None:
    tuned(host, selection=2, scoring_formula="v2 (legacy)")
    passes = [what for what, done, _ in host.told if done == 0]
    assert passes == ["analyse", "compare", "predict", *(["plan", "merge", "score"] * 3), "merge"]
    assert host.steps == [len(passes)]
    host.told.clear()
    tuned(host, selection=2)
    assert len([what for what, done, _ in host.told if done == 0]) <= host.steps[1]


def test_tuning_only_hands_model_and_clip_on(host: FakeHost) -> None:
    found = tuned(host, output_mode="tuning_only")
    assert found["model"] is host.model and found["clip"] is host.clip
    assert found["analysis_report"] == "" and found["lora_data"] is None
    assert len(found["tuner_data"]["top_n"]) == 3 and "tuning_only" not in found["report"].split("\n")[0]
    assert "Nothing was applied" in found["report"]


def test_without_anything_to_tune_there_is_no_tuning_result(host: FakeHost) -> None:
    idle = tuned(host, [("ink.safetensors", 0.0, 0.0)])
    assert idle["model"] is host.model and idle["tuner_data"] is None and idle["lora_data"] is None
    assert "unchanged" in idle["report"] and idle["analysis_report"] == ""
    assert tuned(host, None)["model"] is host.model
    alone = tuned(host, STACK[:1])
    plain = LoRAOptimizerSimple().execute_simple(host.model, STACK[:1], clip=host.clip)
    assert alone["tuner_data"] is None and alone["lora_data"] is not None
    assert same(alone["model"], plain[0]) and "nothing to tune" in alone["report"]
    quiet = tuned(host, STACK[:1], output_mode="tuning_only")
    assert quiet["model"] is host.model and quiet["lora_data"] is None


def test_preserved_loras_alone_are_added_up_and_can_be_replayed(host: FakeHost) -> None:
    stack = [(*one, "all", "all", True) for one in STACK]
    found = tuned(host, stack, selection=3)
    assert len(found["tuner_data"]["top_n"]) == 1 and "there is no rank 3" in found["report"]
    again = LoRAMergeSelector().select_merge(host.model, stack, found["tuner_data"], clip=host.clip)
    assert same(found["model"], again[0])
    outside = LoRAMergeSelector().select_merge(host.model, stack, found["tuner_data"], 2, clip=host.clip)
    assert outside[0] is host.model and outside[3] is None and "no rank 2" in outside[2]


@pytest.mark.parametrize(
    "data", [None, [], {}, {"top_n": []}, {"top_n": [3]}, {"top_n": [{"config": 1}]}], ids=str
)
def test_the_selector_reports_what_is_no_tuning_result_and_changes_nothing(
    host: FakeHost, data: object
) -> None:
    model, clip, report, lora_data = LoRAMergeSelector().select_merge(host.model, STACK, data, clip=host.clip)
    assert model is host.model and clip is host.clip and lora_data is None
    assert report.startswith("Nothing was applied: ")


def test_another_programs_result_is_followed_by_its_words_and_another_stack_is_told(host: FakeHost) -> None:
    config = {
        "merge_mode": "slerp",
        "sparsification": "disabled",
        "sparsification_density": 0.7,
        "dare_dampening": 0.0,
        "merge_refinement": "enhanced",
        "auto_strength": "disabled",
        "optimization_mode": "global",
        "strategy_set": "full",
    }
    data = {
        "version": 1,
        "lora_hash": lora_hash([(name, strength) for name, strength, _ in STACK]),
        "auto_strength_floor": -1.0,
        "top_n": [{"rank": 1, "score_heuristic": 0.8, "config": config}],
    }
    found = LoRAMergeSelector().select_merge(host.model, STACK, data, clip=host.clip)
    legacy = LoRAOptimizer().execute_node(
        host.model,
        STACK,
        clip=host.clip,
        merge_strategy_override="slerp",
        optimization_mode="global",
        merge_refinement="refine",
        auto_strength="disabled",
    )
    assert same(found[0], legacy[0]) and same(found[1], legacy[1])
    assert "no recipe for this rank" in found[2] and "not the one that was tuned" not in found[2]
    other = LoRAMergeSelector().select_merge(host.model, STACK[:2], data, clip=host.clip)
    assert "not the one that was tuned" in other[2]


def test_the_optimizer_tunes_where_its_settings_say_so(host: FakeHost) -> None:
    defaults = {name: value for name, value in widgets_of(LoRAAutoTunerSettings).items()}
    merge_settings = LoRAMergeSettings().build_settings(decision_smoothing=0.5)[0]
    settings = LoRAAutoTunerSettings().build_settings(merge_settings=merge_settings, **defaults)[0]
    assert settings["mode"] == "autotuner" and settings["output_mode"] == "merge"
    assert settings["evaluator"] is None and settings["decision_smoothing"] == 0.5
    found = LoRAOptimizerSimple().execute_simple(host.model, STACK, clip=host.clip, settings=settings)
    direct = tuned(host, decision_smoothing=0.5)
    assert same(found[0], direct["model"])
    assert found[3]["top_n"][0]["config"] == direct["tuner_data"]["top_n"][0]["config"]
    assert "--- The merge ---" in found[2] and "LoRA AutoTuner" in found[2]
    ahead = LoRAOptimizerSimple().execute_simple(
        host.model, STACK, clip=host.clip, settings=settings, tuner_data={"top_n": [{}]}
    )
    assert same(ahead[0], found[0])


def test_a_formula_of_old_ranks_only_where_it_is_called_legacy(host: FakeHost) -> None:
    ours = tuned(host, top_n=6)["tuner_data"]
    asked = tuned(host, top_n=6, scoring_formula="v2")
    assert [one["name"] for one in asked["tuner_data"]["top_n"]] == [one["name"] for one in ours["top_n"]]
    assert "another program's default" in asked["report"] and ours["score_name"] == "own_foreign"
    for word, formula in (("v2 (legacy)", "v2"), ("v1 (legacy)", "v1"), ("v1", "v1")):
        data = tuned(host, top_n=6, scoring_formula=word, scoring_svd="full")["tuner_data"]
        scores = [one["legacy_scores"][formula] for one in data["top_n"]]
        assert scores == sorted(scores, reverse=True) == [one["score_final"] for one in data["top_n"]]
        assert data["score_name"] == f"{formula} (legacy)"
        assert {one["name"] for one in data["top_n"]} == {one["name"] for one in ours["top_n"]}


def test_words_of_other_versions_are_taken_and_others_refused() -> None:
    accepts = LoRAAutoTuner.VALIDATE_INPUTS
    assert accepts(scoring_svd="enabled", community_cache="upload_only", scoring_formula="v1") is True
    assert accepts(architecture_preset="acestep_dit") is True
    assert "scoring_svd" in str(accepts(scoring_svd="some"))
    assert asked_of({"scoring_svd": "enabled"}).spectra == "merge_quality"
    assert "nothing is sent" in asked_of({"community_cache": "upload_and_download"}).notes[0]
    assert asked_of({"community_cache": "download_only"}).notes == ()
    for wrong in (
        {"top_n": 0},
        {"top_n": 2.5},
        {"selection": 11},
        {"memory_mode": "sometimes"},
        {"diff_cache_mode": "cloud"},
        {"evaluator": 3},
        {"scoring_formula": "v3"},
    ):
        with pytest.raises(AlloyError):
            asked_of(wrong)
