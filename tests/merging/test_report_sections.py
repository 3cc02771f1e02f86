"""Every section of the report, with numbers that are worked out again from dense deltas."""

import json
from collections import Counter
from dataclasses import replace
from math import hypot

import numpy as np
import pytest
import torch

from lora_alloy.api import Merged, merge
from lora_alloy.core import usage
from lora_alloy.lora.entries import Model
from lora_alloy.lora.keys import family, key_map
from lora_alloy.lora.stack import Entry, build_stack
from lora_alloy.merging.recipe import Recipe
from lora_alloy.merging.summary import Choices
from lora_alloy_testing import reference
from lora_alloy_testing.builders import TOY, Factors, dense, file_of, on_targets, toy_lora
from lora_alloy_testing.reference import Voice

NAMES = list(TOY)
INK, WASH, ROBOT = toy_lora(1), toy_lora(2, size=0.15), toy_lora(3, names=NAMES[:3])
BLOCKS = {"input_blocks.1": NAMES[:2], "middle_block.1": NAMES[2:3], "clip_l.layers.3": NAMES[3:]}
DELTAS = {"ink": on_targets(INK), "wash": on_targets(WASH), "robot": on_targets(ROBOT)}


def entries(*how: dict[str, object]) -> list[Entry]:
    loras = (("ink", INK), ("wash", WASH), ("robot", ROBOT))
    return [
        Entry(file_of(lora, label), **given)  # type: ignore[arg-type]
        for (label, lora), given in zip(loras, how, strict=False)
    ]


def loud(deltas: dict[str, np.ndarray]) -> float:
    return hypot(*(reference.norm(delta) for delta in deltas.values()))


def added(**strengths: float) -> dict[str, np.ndarray]:
    """The sum of LoRAs on every target, for `strengths` by label."""
    return {
        name: sum(
            (w * DELTAS[label][name] for label, w in strengths.items() if name in DELTAS[label]),
            np.zeros(shape),
        )
        for name, shape in TOY.values()
    }


def opposed() -> list[Entry]:
    """Two that push every entry of two targets to other sides, each where the other is weak; the first has a third."""
    chance = torch.Generator().manual_seed(0)
    loras: tuple[dict[str, Factors], dict[str, Factors]] = ({NAMES[3]: INK[NAMES[3]]}, {})
    for name in (NAMES[0], NAMES[2]):
        signs, first = (torch.rand(2, *TOY[name][1], generator=chance) < 0.5).float()
        signs, sizes = 2 * signs - 1, 0.1 + 0.9 * first
        same = torch.eye(signs.shape[1])
        loras[0][name] = Factors(signs * sizes, same)
        loras[1][name] = Factors(-signs * (1.1 - sizes), same)
    return [Entry(file_of(lora, label)) for lora, label in zip(loras, ("ink", "anti"), strict=True)]


def test_reasons_count_the_targets_of_every_rule():
    told = merge(entries({}, {}, {})).report
    assert told.choices == (Choices("weighted_sum", "balanced", 4),)
    # The last target has the first LoRA alone, the others have both.
    told = merge([Entry(file_of(INK, "ink")), Entry(file_of(ROBOT, "robot"))]).report
    assert told.choices == (
        Choices("weighted_sum", "balanced", 3),
        Choices("weighted_sum", "one LoRA alone", 1),
    )
    assert "Why: weighted_sum on 3, balanced; weighted_sum on 1, one LoRA alone." in told.text()


def test_opposition_is_the_reason_for_ties():
    told = merge(opposed()).report
    assert told.choices == (Choices("ties", "opposed", 2), Choices("weighted_sum", "one LoRA alone", 1))
    assert Counter(told.methods) == {"ties": 2, "weighted_sum": 1}
    assert told.blocks == {
        "input_blocks.1": {"ties": 1},
        "middle_block.1": {"ties": 1},
        "clip_l.layers.3": {"weighted_sum": 1},
    }


@pytest.mark.parametrize(("size", "vote"), [(0.1, "frequency"), (0.4, "total")])
def test_element_wise_work_tells_density_and_vote(size, vote):
    # Deltas are products of two factors: 0.4 in each is sixteen times as loud.
    louder = toy_lora(4, size=size)
    stack = [Entry(file_of(INK, "ink")), Entry(file_of(louder, "loud"))]
    told = merge(stack, Recipe(method="ties", density=0.3)).report
    (work,) = told.work
    assert (work.method, work.sparsifier, work.target_count) == ("ties", "trim", 4)
    assert work.densities == (0.3, 0.3) and work.votes == {vote: 4} and not work.is_masked
    assert f"Element by element: ties on 4 targets: trim to 30%; signs elected by {vote} on 4." in told.text()


def test_a_range_of_densities_has_the_least_and_the_largest():
    merged = merge(entries({}, {}), Recipe(method="ties"))
    chosen = [one.work.settings["density"] for one in merged.plan.targets if one.work]
    assert min(chosen) < max(chosen)
    assert merged.report.work[0].densities == (min(chosen), max(chosen))
    assert f"trim to {min(chosen):.0%}–{max(chosen):.0%}" in merged.report.text()


def test_enhancers_are_told_and_combinations_are_no_element_wise_work():
    told = merge(entries({}, {}), Recipe(method="ties", sparsify="dare", enhance="refine")).report
    assert told.work[0].sparsifier == "dare"
    assert "dare to 70%" in told.text() and "orthogonalise; tall masks; column wise" in told.text()
    plain = merge(entries({}, {})).report
    assert plain.work == () and "Element by element" not in plain.text()


def test_conflict_mode_key_filter_and_preserve_are_marked():
    stack = entries({"conflict_mode": "low_conflict"}, {"key_filter": "shared_only"}, {"preserve": True})
    told = merge(stack).report
    assert [source.conflict_mode for source in told.sources] == ["low_conflict", "all", "all"]
    assert [source.key_filter for source in told.sources] == ["all", "shared_only", "all"]
    lines = {line.split()[1]: line for line in told.text().splitlines() if line[:2] in ("1.", "2.", "3.")}
    assert lines["ink"].endswith("  low conflict")
    assert lines["wash"].endswith("  shared only")
    assert lines["robot"].endswith("%  preserved")
    assert told.work[0].is_masked and "conflict modes" in told.work[0].sentence()


def test_a_structural_lora_is_marked_as_held_out():
    stack = [*entries({}, {}), Entry(file_of(ROBOT, "lcm-lora-sdv1-5"), 0.7)]
    told = merge(stack).report
    assert told.sources[2].mark == "held out"
    assert "  held out" in told.text() and told.sources[2].retention == pytest.approx(1.0, abs=0.2)


def bytes_of_factors(merged: Merged) -> int:
    return sum(patch.rank * (patch.shape[0] + int(np.prod(patch.shape[1:]))) * 4 for patch in merged.patches)


def test_forms_count_targets_and_bytes():
    thin = merge(entries({}, {}))
    (form,) = thin.report.forms
    assert (form.name, form.target_count) == ("low-rank", 4)
    assert form.size_bytes == bytes_of_factors(thin) == thin.report.size_bytes
    full = merge(entries({}, {}), Recipe(method="ties", compress="disabled")).report
    (form,) = full.forms
    assert (form.name, form.target_count, form.error) == ("dense", 4, 0.0)
    assert form.size_bytes == sum(int(np.prod(shape)) * 4 for _, shape in TOY.values())
    assert (
        "Form: dense on 4, 0.0 MB, error up to 0.0e+00." in full.text() and "Form:" not in thin.report.text()
    )


def test_a_form_has_the_largest_error_of_its_targets():
    merged = merge(entries({}, {}), Recipe(method="weighted_sum", auto_strength=False, rank=3))
    whole, found, errors = added(ink=1.0, wash=1.0), dense(merged), []
    for name, delta in whole.items():
        errors.append(reference.norm(found[name] - delta) / reference.norm(delta))
    assert merged.report.forms[0].error == pytest.approx(max(errors), rel=1e-4) and max(errors) > 0.1


def test_norms_before_and_after_are_those_of_the_plain_sum_and_the_result_by_block():
    stack = entries({"strength": 1.0, "clip_strength": 0.5}, {"strength": -0.8}, {"preserve": True})
    merged = merge(stack)
    found = dense(merged)
    for block, names in BLOCKS.items():
        targets = [TOY[name][0] for name in names]
        on_clip = block.startswith("clip")
        plain = added(ink=0.5 if on_clip else 1.0, wash=-0.8, robot=1.0)
        told = merged.report.loudness[block]
        assert told.plain == pytest.approx(hypot(*(reference.norm(plain[one]) for one in targets)), rel=1e-5)
        assert told.merged == pytest.approx(hypot(*(reference.norm(found[one]) for one in targets)), rel=1e-5)
        line = next(line for line in merged.report.text().splitlines() if line.startswith(block))
        assert f"{told.plain:.3g}" in line and f"{told.merged:.3g}" in line
    assert merged.report.loudness.keys() == BLOCKS.keys()


def test_what_has_no_place_is_counted_with_its_share_of_the_energy():
    known = {name: route for name, route in key_map(family("sd15")).items() if not route.target.is_clip}
    model = Model(known, {TOY[name][0]: TOY[name][1] for name in NAMES[:3]}, has_clip=False)
    told = merge(build_stack(entries({}, {}), model)).report
    for source, label in zip(told.sources, ("ink", "wash"), strict=True):
        energy = {name: reference.norm(delta) ** 2 for name, delta in DELTAS[label].items()}
        share = energy[TOY[NAMES[3]][0]] / sum(energy.values())
        assert source.unmatched_count == 1
        assert source.skipped_share == pytest.approx(share, rel=1e-5) and share > 0.05
        assert f"1 without a place ({share:.0%} of its energy)" in told.text()
    assert all(source.skipped_share == 0.0 for source in merge(entries({}, {})).report.sources)


def test_the_loras_inside_a_formula_have_their_own_retention():
    stack = entries({"strength": 0.9, "clip_strength": 0.5}, {}, {})
    merged = merge(stack, Recipe(formula="(1+2):0.6 + 3:0.8"))
    told, found = merged.report, dense(merged)
    assert [(leaf.label, leaf.inside) for leaf in told.leaves] == [("ink", "(1+2)"), ("wash", "(1+2)")]
    for leaf, label, strengths in zip(told.leaves, ("ink", "wash"), ((0.54, 0.3), (0.6, 0.6)), strict=True):
        voice = Voice(DELTAS[label], *strengths)
        assert (leaf.strength, leaf.clip_strength) == pytest.approx(strengths)
        assert leaf.retention == pytest.approx(reference.retention(found, voice), abs=1e-5)
        for block, names in BLOCKS.items():
            part = {TOY[name][0]: DELTAS[label][TOY[name][0]] for name in names}
            here = Voice(part, *strengths)
            assert leaf.blocks[block] == pytest.approx(
                reference.retention({name: found[name] for name in part}, here), abs=1e-5
            )
        assert f"{label} inside (1+2), at {strengths[0]:.3g} (CLIP {strengths[1]:.3g}):" in told.text()
    assert [source.label for source in told.sources] == ["(1+2)", "robot"]


def test_what_a_formula_merges_first_tells_its_methods_and_balance():
    told = merge(entries({}, {}, {}), Recipe(formula="((1+3):0.5 + 2):0.6")).report
    inner = {one.label: one for one in told.inner}
    assert [one.labels for one in told.inner if set(one.labels) == {"ink", "robot"}]
    first = next(one for one in told.inner if set(one.labels) == {"ink", "robot"})
    assert first.choices == (
        Choices("weighted_sum", "balanced", 3),
        Choices("weighted_sum", "one LoRA alone", 1),
    )
    assert f"Inside {first.label}: weighted_sum on 3, balanced" in told.text()
    assert len(inner) == len(told.inner) and merge(entries({}, {})).report.leaves == ()
    # Strengths multiply on the way in: 0.6 · 0.5.
    assert {leaf.label: leaf.strength for leaf in told.leaves} == pytest.approx(
        {"ink": 0.3, "robot": 0.3, "wash": 0.6}
    )


def test_balance_turns_loud_loras_down_by_the_root_of_their_norms_to_the_mean_norm():
    merged = merge(entries({}, {"strength": 0.7}))
    model = next(branch for branch in merged.report.scales if branch.name == "model")
    on_model = [TOY[name][0] for name in NAMES[:3]]
    norms = [
        strength * hypot(*(reference.norm(DELTAS[label][name]) for name in on_model))
        for label, strength in (("ink", 1.0), ("wash", 0.7))
    ]
    assert model.energies == pytest.approx(norms, rel=1e-5)
    weights = [factor * norm**0.5 for factor, norm in zip(model.factors, norms, strict=True)]
    assert weights[0] == pytest.approx(weights[1], rel=1e-6) and max(model.factors) < 1.0
    blend = added(ink=model.factors[0], wash=0.7 * model.factors[1])
    assert hypot(*(reference.norm(blend[name]) for name in on_model)) == pytest.approx(
        float(np.mean(norms)), rel=1e-5
    )
    assert (
        f"Balance of the model: ink × {model.factors[0]:.2f}, wash × {model.factors[1]:.2f} (to the mean"
        in merged.report.text()
    )


def test_others_stay_as_they_are_only_where_others_play():
    text = merge(entries({}, {}, {"preserve": True})).report.text()
    assert "Balance of the model" in text and "others as they are" not in text


def test_together_has_the_means_over_the_pairs():
    told = merge(entries({}, {}, {})).report
    pairs = [("ink", "wash"), ("ink", "robot"), ("wash", "robot")]
    cosines = []
    for one, other in pairs:
        shared = [name for name in DELTAS[one] if name in DELTAS[other]]
        dot = sum(reference.dot(DELTAS[one][name], DELTAS[other][name]) for name in shared)
        norms = [loud({name: DELTAS[label][name] for name in shared}) for label in (one, other)]
        cosines.append(dot / (norms[0] * norms[1]))
    norms = sorted(loud(deltas) for deltas in DELTAS.values())
    assert f"mean cosine {np.mean(cosines):+.2f};" in told.text()
    assert f"the loudest is {norms[-1] / norms[0]:.2f} times the quietest" in told.text()


def test_time_and_memory_are_told():
    merged = merge(entries({}, {}))
    cost = merged.report.cost
    assert cost is not None and min(cost.measure_seconds, cost.plan_seconds, cost.merge_seconds) > 0
    assert cost.seconds == cost.measure_seconds + cost.plan_seconds + cost.merge_seconds
    assert cost.peak_bytes > 20e6 and cost.grown_bytes >= 0
    assert f"Time: {cost.seconds:.1f} s" in merged.report.text()
    assert "Time:" not in replace(merged.report, cost=None).text()


def test_peak_memory_is_what_the_system_says(tmp_path, monkeypatch):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t  1234 kB\nVmRSS:\t  1000 kB\n")
    monkeypatch.setattr(usage, "STATUS", status)
    assert usage.peak_bytes() == 1234 * 1024


def test_json_has_every_section():
    merged = merge(entries({}, {}, {}), Recipe(formula="(1+2):0.6 + 3:0.4"))
    told = json.loads(json.dumps(merged.report.to_json()))
    assert told["choices"][0] == {"method": "weighted_sum", "rule": "balanced", "target_count": 3}
    assert {source["label"]: source["retention"] for source in told["sources"]} == {
        source.label: source.retention for source in merged.report.sources
    }
    assert told["leaves"][0]["inside"] == "(1+2)" and told["inner"][0]["labels"] == ["ink", "wash"]
    assert told["loudness"].keys() == BLOCKS.keys() and told["cost"]["peak_bytes"] > 0
    assert told["forms"][0]["name"] == "low-rank" and told["work"] == []
    assert len(told["scales"][0]["factors"]) == 2


def test_of_many_loras_a_block_shows_what_suffers_most():
    stack = [Entry(file_of(toy_lora(seed), f"lora {seed}")) for seed in range(9)]
    told = merge(stack).report
    head = next(line for line in told.text().splitlines() if line.startswith("block"))
    assert "least left" in head and "left 1" not in head
    least = min(source.blocks["middle_block.1"] for source in told.sources)
    line = next(line for line in told.text().splitlines() if line.startswith("middle_block.1"))
    assert f"{least:.0%}" in line
