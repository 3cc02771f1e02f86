"""Files of tuning results, and evaluators, at the nodes that name them."""

import json
from pathlib import Path
from typing import Any

import pytest

from lora_alloy.core.errors import FileError, RecipeError, SaveError
from lora_alloy.nodes.build_auto_tuner_python_evaluator import BuildAutoTunerPythonEvaluator
from lora_alloy.nodes.load_tuner_data import LoadTunerData
from lora_alloy.nodes.save_tuner_data import SaveTunerData
from lora_alloy_testing.fake_host import FakeHost, swept, tuned

EVALUATOR = """
def evaluate_candidate(*, model, clip, lora_data, config, context, analysis_summary):
    assert model.patches and clip.patches and lora_data["model_patches"]
    return {"score": context[config["merge_mode"]], "details": {"loras": analysis_summary["n_loras"]}}
"""


def test_an_evaluator_judges_only_where_the_owner_allows_it(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "judge.py"
    path.write_text(EVALUATOR)
    context = {"per_prefix_auto": 0.1, "weighted_sum": 0.9, "weighted_average": 0.5, "slerp": 0.5}
    evaluator = BuildAutoTunerPythonEvaluator().build(
        f" {path} ", "evaluate_candidate", "external_only", 0.5, json.dumps(context)
    )[0]
    monkeypatch.delenv("LORA_ALLOY_EVALUATORS", raising=False)
    with pytest.raises(RecipeError, match="LORA_ALLOY_EVALUATORS"):
        tuned(host, evaluator=evaluator)
    monkeypatch.setenv("LORA_ALLOY_EVALUATORS", str(path))
    found = tuned(host, evaluator=evaluator, top_n=8)["tuner_data"]["top_n"]
    assert [one["score_external"] for one in found] == [context[one["config"]["merge_mode"]] for one in found]
    assert [one["score_final"] for one in found] == sorted(
        (one["score_external"] for one in found), reverse=True
    )
    assert found[0]["external_details"] == {"loras": 3}
    host.told.clear()
    tuned(host, evaluator=evaluator, top_n=8)
    assert not swept(host)
    path.write_text(EVALUATOR + "\n# changed")
    tuned(host, evaluator=evaluator, top_n=8)
    assert swept(host)


def test_the_evaluator_node_builds_a_mapping_and_runs_nothing() -> None:
    build = BuildAutoTunerPythonEvaluator().build
    assert build("  judge.py ", " rate ", "multiply", 0.25, ' {"a": [1]} ') == (
        {
            "module_path": "judge.py",
            "callable_name": "rate",
            "combine_mode": "multiply",
            "weight": 0.25,
            "context": {"a": [1]},
        },
    )
    assert build("x")[0]["context"] == {} == build("x", context_json="  ")[0]["context"]
    with pytest.raises(RecipeError, match="not JSON"):
        build("x", context_json="{")
    with pytest.raises(RecipeError, match="combine_mode"):
        build("x", combine_mode="sum")
    changed = BuildAutoTunerPythonEvaluator.IS_CHANGED
    assert (
        changed(module_path="a", weight=1) == changed(weight=1, module_path="a") != changed(module_path="b")
    )


def test_a_file_is_numbered_or_replaced_and_nobody_elses_is(host: FakeHost, tmp_path: Path) -> None:
    data = tuned(host)["tuner_data"]

    def save(name: str, **how: Any) -> Path:
        return Path(SaveTunerData().save_tuner_data(data, "Z:\\elsewhere", name, **how)["result"][0])

    root = tmp_path / "tuner_data"
    assert save("a", prompt=" a kettle ", description="  ") == root / "a.tuner"
    assert save("a", overwrite=False) == root / "a_001.tuner"
    assert save("a", overwrite=False) == root / "a_002.tuner"
    assert save("deep\\er/b.json") == root / "deep" / "er" / "b.json"
    loaded, prompt, description, info = LoadTunerData().load_tuner_data("a.tuner")
    assert (prompt, description) == ("a kettle", "") and loaded["prompt"] == "a kettle"
    assert "description" not in loaded and "ink.safetensors @ 1.0" in info and "configs: 3" in info
    assert LoadTunerData().load_tuner_data("deep\\er\\b.json")[0] == data
    assert LoadTunerData.VALIDATE_INPUTS("a.tuner") is True
    assert "no tuning result called 'c.tuner'" in str(LoadTunerData.VALIDATE_INPUTS("c.tuner"))
    before = LoadTunerData.IS_CHANGED("a.tuner")
    save("a", prompt="another")
    assert LoadTunerData.IS_CHANGED("a.tuner") != before
    assert LoadTunerData.INPUT_TYPES()["required"]["tuner_data_file"][0] == sorted(
        ["a.tuner", "a_001.tuner", "a_002.tuner", "deep/er/b.json"]
    )
    (root / "notes.json").write_text('{"mine": 1}')
    with pytest.raises(SaveError, match="no tuning result"):
        save("notes.json")
    assert (root / "notes.json").read_text() == '{"mine": 1}'
    with pytest.raises(FileError, match="no candidates"):
        LoadTunerData().load_tuner_data("notes.json")
    for name in ("../out", "", "x/../../y"):
        with pytest.raises(SaveError):
            save(name)
    assert SaveTunerData().save_tuner_data(None)["result"] == ("",)
    with pytest.raises(SaveError, match="tuner_data` is a list"):
        SaveTunerData().save_tuner_data([1])
