"""The reports: one file each, sound HTML, nothing loaded, nothing a stranger writes is markup."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from lora_alloy.analysis.report import make_analysis
from lora_alloy.api import analyze, merge
from lora_alloy.cli.analysis_page import analysis_page
from lora_alloy.cli.html import VOID, Html, tag
from lora_alloy.cli.inspect_page import inspect_page
from lora_alloy.cli.merge_page import merge_page
from lora_alloy.lora.estimate import estimate_merge
from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.inspection import inspect_opened
from lora_alloy.lora.stack import Entry
from lora_alloy_testing.small_loras import SDXL

HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)>\'&`$body`'


class Outline(HTMLParser):
    """Checks that elements are closed in order, and collects them with their attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    return parsed


def stack(count: int) -> list[Entry]:
    entries = []
    for place in range(count):
        chance = torch.Generator().manual_seed(place)
        tensors = {}
        for name, (rows, columns) in SDXL.items():
            tensors[f"{name}.lora_up.weight"] = torch.randn(rows, 3, generator=chance)
            tensors[f"{name}.lora_down.weight"] = torch.randn(3, columns, generator=chance)
        entries.append(Entry(lora_in_memory(f"{HOSTILE} {place}", tensors, {}), 1.0, None, place == 1))
    return entries


def pages(count: int, folder) -> list[str]:
    entries = stack(count)
    merged = merge(entries)
    proof = merged.save(folder / "merged")
    return [
        merge_page(replace(merged.report, cost=None), merged.plan, proof, "comfyui"),
        analysis_page(make_analysis(*analyze(entries))),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_pages_are_sound_for_any_number_of_loras(tmp_path, count):
    for page in pages(count, tmp_path):
        assert page.startswith("<!doctype html>")
        seen = outline(page)
        assert "Block" in seen.text and "input_blocks.4" in seen.text


def test_names_from_files_are_never_markup(tmp_path):
    for page in pages(3, tmp_path):
        seen = outline(page)
        assert {name for name, _ in seen.found} & {"script", "img", "link", "iframe", "object"} == set()
        assert not any(key.startswith("on") for _, attributes in seen.found for key in attributes)
        assert 'alert("1")' in seen.text and "$body" in seen.text


def test_pages_load_nothing(tmp_path):
    for page in pages(2, tmp_path):
        seen = outline(page)
        for name, attributes in seen.found:
            assert not {"src", "href", "srcset", "action"} & attributes.keys(), name
        assert not re.search(r"url\(|@import|https?:", page)
        assert "default-src 'none'" in page


def test_the_merge_page_tells_what_the_report_does(tmp_path):
    merged = merge(stack(3))
    text = outline(merge_page(merged.report, merged.plan, merged.save(tmp_path / "out"), "comfyui")).text
    for source in merged.report.sources:
        assert f"{source.retention:.0%}" in text
    for branch in merged.report.scales:
        assert f"× {branch.scale:.3f}" in text
    assert merged.plan.sources[0].sha256 in text
    assert "every target equals the merge bit for bit" in text


def test_the_same_merge_gives_the_same_page(tmp_path):
    assert pages(2, tmp_path) == pages(2, tmp_path)


def test_text_is_escaped_and_html_is_not():
    assert tag("b", "1 < 2", tag("i", "x"), title='"&') == '<b title="&quot;&amp;">1 &lt; 2<i>x</i></b>'
    assert tag("td", class_=None) == "<td></td>"
    assert isinstance(tag("p"), Html)


def inspected(count: int) -> str:
    """The page of files with hostile names and headers, ranks and blocks of all kinds."""
    files = []
    for place in range(count):
        tensors = {}
        for block in range(place + 1):
            name = f"{HOSTILE}.double_blocks.{block}.proj"
            tensors[f"{name}.lora_up.weight"] = torch.ones(8, place + 1 + block % 2)
            tensors[f"{name}.lora_down.weight"] = torch.ones(place + 1 + block % 2, 8)
        told = dict.fromkeys(("modelspec.trigger_phrase", "ss_sd_model_name", "ss_output_name"), HOSTILE)
        files.append(lora_in_memory(f"lcm-lora-sdxl {HOSTILE} {place}", tensors, told))
    return inspect_page([inspect_opened(file) for file in files], [HOSTILE], estimate_merge(files))


@pytest.mark.parametrize("count", [0, 1, 2, 16])
def test_the_page_of_an_inspection_is_sound_and_no_header_is_markup(count):
    page = inspected(count)
    seen = outline(page)
    assert {name for name, _ in seen.found} & {"script", "img", "link", "iframe", "object"} == set()
    for name, attributes in seen.found:
        assert not any(key.startswith("on") or key in ("src", "href") for key in attributes), name
    assert 'alert("1")' in seen.text and not re.search(r"url\(|@import|https?:", page)
