"""A merged file leads back to its sources, by content, and never out of the folders that were named."""

import json
from dataclasses import replace

import pytest

from lora_alloy.api import merge, verify
from lora_alloy.core.errors import ProofError, StackError
from lora_alloy.lora.file import open_lora
from lora_alloy.lora.stack import Entry
from lora_alloy.merging.metadata import described
from lora_alloy.merging.provenance import disagreements, find_sources, with_preserved
from lora_alloy_testing.small_loras import write_small


@pytest.fixture
def made(tmp_path):
    paths = [write_small(tmp_path / f"{name}.safetensors", seed=seed) for seed, name in enumerate("ab")]
    entries = [Entry(open_lora(paths[0]), 0.5), Entry(open_lora(paths[1]), 2.0, 1.5, preserve=True)]
    merge(entries).save(tmp_path / "merged")
    told = described(open_lora(tmp_path / "merged.safetensors").tensors.metadata)
    assert told is not None
    return told, entries


def test_sources_come_back_with_strengths_and_preserve(made, tmp_path):
    told, _ = made
    found = find_sources(told, [tmp_path / "nowhere", tmp_path])
    seen = [(entry.file.label, entry.strength, entry.clip_strength, entry.preserve) for entry in found]
    assert seen == [("a.safetensors", 0.5, 0.5, False), ("b.safetensors", 2.0, 1.5, True)]
    assert verify(tmp_path / "merged.safetensors", found).read_error == 0.0


@pytest.mark.parametrize("label", ["../a.safetensors", "..", "", "sub/a.safetensors", "sub\\a.safetensors"])
def test_a_label_never_leads_out_of_the_folder(made, tmp_path, label):
    told, _ = made
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    for place in (inside / "sub" / "a.safetensors", inside / "sub\\a.safetensors"):
        place.write_bytes((tmp_path / "a.safetensors").read_bytes())
    strange = replace(told, sources=(replace(told.sources[0], label=label),))
    with pytest.raises(StackError, match="not in"):
        find_sources(strange, [inside])


def test_preserve_follows_the_content(made):
    told, entries = made
    plain = [replace(entry, preserve=False) for entry in entries]
    assert [entry.preserve for entry in with_preserved(plain, told)] == [False, True]


def test_disagreements_are_named(made):
    told, entries = made
    assert disagreements(entries, told) == []
    louder = [replace(entries[0], strength=0.75), entries[1]]
    assert disagreements(louder, told) == [
        "It says `a.safetensors` was at 0.5 (CLIP 0.5); given were 0.75 (CLIP 0.75)."
    ]
    assert disagreements(entries[:1], told) == [
        "It says it was made with `b.safetensors` at 2, preserved; that was not given."
    ]
    assert disagreements(entries, replace(told, sources=told.sources[:1])) == [
        "It does not name `b.safetensors` among its sources."
    ]


@pytest.mark.parametrize(
    "text", ["{}", "[1]", '[{"label": 3}]', "[" * 9999, '[{"strength": "x"}]', "nonsense"]
)
def test_sources_that_are_none_make_a_file_that_does_not_say(text):
    told = {
        "lora_alloy.recipe": "{}",
        "lora_alloy.saved": json.dumps({"naming": "comfyui", "gain": 1, "clip_gain": 1}),
    }
    assert described(told) is not None
    found = described(told | {"lora_alloy.sources": text})
    assert found is None or found.sources == ()


def test_a_rounding_that_another_machine_does_is_allowed_and_more_is_not(made, tmp_path):
    _, entries = made
    merged = merge(entries)
    patch = merged.patches[0]
    for factor, is_fine in ((1 + 1e-4, True), (1 + 1e-3, False)):
        merged.patches = (replace(patch, up=(patch.up.double() * factor).half()), *merged.patches[1:])
        path = tmp_path / f"{factor}.safetensors"
        merged.save(path)
        if is_fine:
            assert 0 <= verify(path, entries).read_error < 5e-4
        else:
            with pytest.raises(ProofError, match="is not what these inputs give"):
                verify(path, entries)
