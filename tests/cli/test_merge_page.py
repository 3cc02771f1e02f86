"""The merge page: its maps have the numbers of the report, cell by cell."""

import re
from dataclasses import replace

import pytest
import torch

from lora_alloy.api import merge
from lora_alloy.cli.merge_page import merge_page
from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.recipe import Recipe
from lora_alloy_testing.small_loras import SDXL


def lora(seed: int, names=tuple(SDXL)) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    tensors = {}
    for name in names:
        rows, columns = SDXL[name]
        tensors[f"{name}.lora_up.weight"] = torch.randn(rows, 3, generator=chance)
        tensors[f"{name}.lora_down.weight"] = torch.randn(3, columns, generator=chance)
    return tensors


def entries(*strengths: float, **how: object) -> list[Entry]:
    return [
        Entry(lora_in_memory(f"lora {seed}.safetensors", lora(seed), {}), strength, **how)  # type: ignore[arg-type]
        for seed, strength in enumerate(strengths)
    ]


@pytest.fixture
def paged(tmp_path):
    def made(stack, recipe=None):
        merged = merge(stack, recipe)
        return merged.report, merge_page(merged.report, merged.plan, merged.save(tmp_path / "out"), "comfyui")

    return made


def section(page: str, title: str) -> str:
    return next(part for part in page.split("<section>") if part.startswith(f"<h2>{title}</h2>"))


def rows(html: str) -> list[list[str]]:
    """The texts of the cells of every row."""
    return [
        [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", html)
    ]


def test_pair_maps_have_every_pair_twice_and_no_lora_with_itself(paged):
    report, page = paged(entries(1.0, -0.7, 0.5))
    cosine, conflict = re.findall(r"<tbody>(.*?)</tbody>", section(page, "How they relate"))
    at = {(pair.first, pair.second): pair for pair in report.pairs}
    labels = [source.label for source in report.sources]
    for shown, row in enumerate(rows(cosine)):
        for place, cell in enumerate(row[1:]):
            pair = at.get((labels[shown], labels[place])) or at.get((labels[place], labels[shown]))
            assert cell == (
                "–" if pair is None else f"{pair.cosine:+.2f}" if abs(pair.cosine) >= 0.005 else "0.00"
            )
    assert sum(cell == "–" for row in rows(conflict) for cell in row) == 3
    assert "Mean cosine" in section(page, "How they relate")


def test_the_block_map_has_retention_and_norms_before_and_after(paged):
    report, page = paged(entries(1.0, 0.8))
    found = {row[0]: row[1:] for row in rows(section(page, "Block by block"))}
    for name, methods in report.blocks.items():
        loud = report.loudness[name]
        assert found[name] == [
            *(f"{source.blocks[name]:.0%}" for source in report.sources),
            f"{loud.plain:.3g}",
            f"{loud.merged:.3g}",
            str(sum(methods.values())),
        ]


def test_the_strategy_map_has_a_column_for_every_method_and_adds_up(paged):
    stack = entries(1.0, 1.0)
    alone = next(iter(SDXL))
    stack[1] = Entry(lora_in_memory("few", lora(9, [alone]), {}))
    report, page = paged(stack, Recipe(method="karcher"))
    assert set(report.methods) == {"karcher", "weighted_sum"}
    methods = section(page, "Methods")
    listed, strategy = re.findall(r"<table.*?</table>", methods)
    assert rows(listed)[1:] == [[one.method, one.rule, str(one.target_count)] for one in report.choices]
    head, *body = rows(strategy)
    assert head == ["Block", *report.methods]
    for row in body:
        if len(row) > 1:
            counts = {name: int(cell) for name, cell in zip(head[1:], row[1:], strict=True) if cell != "–"}
            assert counts == report.blocks[row[0]]
    assert sum(int(cell) for row in body for cell in row[1:] if cell != "–") == report.target_count


def test_balance_and_cost_and_forms_are_told(paged):
    report, page = paged(entries(1.0, 0.8))
    model = report.scales[0]
    text = section(page, "How loud it is")
    for factor, norm in zip(model.factors, model.energies, strict=True):
        assert factor < 1.0 and f"× {factor:.2f}" in text and f"{norm:.3g}" in text
    came = section(page, "What came out")
    assert rows(came)[1][:2] == ["low-rank", str(report.target_count)]
    assert f"{report.cost.peak_bytes / 1e6:.0f} MB" in came


def test_element_wise_work_is_told_with_dense_forms(paged):
    report, page = paged(entries(1.0, 0.8), Recipe(method="ties", density=0.4, compress="disabled"))
    assert report.work[0].sentence() in section(page, "Methods") and "trim to 40%" in page
    assert rows(section(page, "What came out"))[1][0] == "dense"


def test_a_formula_shows_the_loras_inside(paged):
    report, page = paged(entries(1.0, 0.8, 0.6), Recipe(formula="(1+2):0.5 + 3"))
    first = section(page, "Merged first")
    for row, leaf in zip(rows(first)[1:], report.leaves, strict=True):
        assert row[:3] == [leaf.label.removesuffix(".safetensors"), "(1+2)", f"{leaf.retention:.0%}"]
    assert "Merged first" not in paged(entries(1.0, 0.8))[1]


def test_marks_stand_beside_the_name(paged):
    stack = entries(1.0, 0.8, 0.6)
    stack[0] = replace(stack[0], conflict_mode="high_conflict")
    stack[2] = replace(stack[2], preserve=True)
    page = section(paged(stack)[1], "What is left of each")
    chips = [re.findall(r'class="chip[^>]*>([^<]*)<', row) for row in re.findall(r"<tr>(.*?)</tr>", page)[1:]]
    assert chips == [["high conflict"], [], ["preserved"]]
