"""A merged file leads back to its sources, by content, and never out of the folders that were named."""

import json
from dataclasses import replace

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lora_alloy.api import merge
from lora_alloy.core.errors import ProofError, StackError
from lora_alloy.lora.file import open_lora
from lora_alloy.lora.keys import family, key_map
from lora_alloy.lora.stack import Entry, Model, build_stack
from lora_alloy.lora.target import Route, Target
from lora_alloy.merging.metadata import described
from lora_alloy.merging.provenance import disagreements, find_sources, with_preserved
from lora_alloy.proving import verify
from lora_alloy_testing.builders import TOY, entry_of, noise, toy_lora, write_lora
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


@pytest.mark.parametrize(
    "text", ["[]", "3", '{"naming": "kohya"}', '{"naming": "a", "gain": 1, "clip_gain": 1, "rank": 1e999}']
)
def test_a_header_that_cannot_be_read_does_not_say(text):
    assert described({"lora_alloy.recipe": "{}", "lora_alloy.saved": text}) is None


def test_a_rounding_that_another_machine_does_is_allowed_and_more_is_not(made, tmp_path):
    _, entries = made
    merged = merge(entries)
    patch = merged.patches[0]
    for factor, is_fine in ((1 + 1e-4, True), (1 + 1e-3, False)):
        louder = replace(patch.delta, up=(patch.up.double() * factor).half())
        path = tmp_path / f"{factor}.safetensors"
        replace(merged, patches=(replace(patch, delta=louder), *merged.patches[1:])).save(path)
        if is_fine:
            assert 0 <= verify(path, entries).read_error < 5e-4
        else:
            with pytest.raises(ProofError, match="is not what these inputs give"):
                verify(path, entries)


class TestAHostsModel:
    """What a model lacked when a merge was saved in ComfyUI is not missed when it is proven without it."""

    @pytest.fixture
    def paths(self, tmp_path):
        return [write_lora(tmp_path / f"{n}.safetensors", toy_lora(n)) for n in range(2)]

    def saved(self, paths, model, tmp_path):
        entries = [entry_of(paths[0]), entry_of(paths[1], 0.5)]
        path = merge(build_stack(entries, model)).save(tmp_path / "out", gain=0.9).path
        return path, entries

    def model(self, names, *, has_clip=True):
        known, shapes = key_map(family("sd15")), {TOY[n][0]: TOY[n][1] for n in names}
        return Model({n: known[n] for n in (*names, *shapes)}, shapes, has_clip)

    @pytest.mark.parametrize(("count", "has_clip"), [(3, False), (2, False), (3, True), (1, True), (4, True)])
    def test_may_lack_modules_and_text_encoders(self, count, has_clip, paths, tmp_path):
        path, entries = self.saved(paths, self.model(list(TOY)[:count], has_clip=has_clip), tmp_path)
        proof = verify(path, entries)
        assert (proof.target_count, proof.read_error) == (count, 0.0)

    def test_lacks_no_more_than_the_header_says(self, paths, tmp_path):
        path, entries = self.saved(paths, self.model(list(TOY)[:3], has_clip=False), tmp_path)
        tensors = {name: one for name, one in load_file(path).items() if "attn1" not in name}
        with safe_open(path, "pt") as file:
            save_file(tensors, path.with_name("less.safetensors"), file.metadata())
        with pytest.raises(ProofError, match="has 2 modules, the merge has 3; .*attn1.to_q` is missing"):
            verify(path.with_name("less.safetensors"), entries)

    def test_may_have_names_of_its_own_for_an_architecture_unknown_here(self, tmp_path):
        lora = {"lora_unet_blocks_0_self_attn_q": noise((24, 16), 4)}
        weight = "diffusion_model.blocks.0.self_attn.q"
        model = Model({name: Route(Target(weight)) for name in (*lora, weight)}, {weight: (24, 16)})
        entries = [entry_of(write_lora(tmp_path / "wan.safetensors", lora))]
        path = merge(build_stack(entries, model)).save(tmp_path / "out").path
        assert list(open_lora(path).modules) == [weight]
        assert verify(path, entries).read_error == 0.0

    def test_says_its_lack_in_the_header(self, paths, tmp_path):
        path, _ = self.saved(paths, self.model(list(TOY)[:2], has_clip=False), tmp_path)
        told = described(open_lora(path).tensors.metadata)
        assert told is not None
        assert (told.has_clip, told.left_out) == (False, (list(TOY)[2],))


HOSTILE = {
    "saved is a list": {"saved": []},
    "saved is deep": {"saved": "[" * 100_000},
    "rank is endless": {"saved": {"rank": float("inf")}},
    "gain is endless": {"saved": {"gain": float("inf")}},
    "gain is huge": {"saved": {"gain": 10**400}},
    "gain is no number": {"saved": {"clip_gain": float("nan")}},
    "rank is negative": {"saved": {"rank": -1}},
    "a naming nobody knows": {"saved": {"naming": "<b>"}},
    "left out is a number": {"saved": {"left_out": 3}},
    "sources are a number": {"sources": 3},
    "sources are text": {"sources": "abc"},
    "a strength is huge": {"sources": [{"strength": 10**400}]},
    "a strength is text": {"sources": [{"strength": "abc"}]},
    "a label is a number": {"sources": [{"label": 3}]},
    "a recipe of another version": {"recipe": {"version": 2}},
    "a recipe with a number that is none": {"recipe": {"tolerance": float("nan")}},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_header_that_lies_in_its_kinds_says_nothing(made, tmp_path, change):
    metadata = dict(open_lora(tmp_path / "merged.safetensors").tensors.metadata)
    for name, given in change.items():
        told = json.loads(metadata[f"lora_alloy.{name}"])
        if isinstance(given, dict):
            given = {**told, **given}
        elif isinstance(given, list) and given:
            given = [{**told[0], **given[0]}]
        metadata[f"lora_alloy.{name}"] = given if isinstance(given, str) else json.dumps(given)
    assert described(metadata) is None


@pytest.mark.parametrize("label", ["a\0b", "\ud83c", "x" * 100_000])
def test_a_label_that_no_file_can_have_is_missing(made, tmp_path, label):
    told, _ = made
    odd = replace(told, sources=(replace(told.sources[0], label=label),))
    with pytest.raises(StackError, match="is not in") as problem:
        find_sources(odd, [tmp_path])
    assert len(str(problem.value)) < 1000


def test_a_source_that_stands_there_a_thousand_times_is_read_once(made, tmp_path, monkeypatch):
    told, _ = made
    opened = []

    def counted(path):
        opened.append(path)
        return open_lora(path)

    monkeypatch.setattr("lora_alloy.merging.provenance.open_lora", counted)
    many = replace(told, sources=told.sources[:1] * 1000)
    found = find_sources(many, [tmp_path])
    assert len(found) == 1000 and len(opened) == 1
    missing = replace(told, sources=tuple(replace(told.sources[0], label=f"{n}") for n in range(1000)))
    with pytest.raises(StackError, match="and 992 more are not in"):
        find_sources(missing, [tmp_path])
    assert len(disagreements([], missing)) == 9
