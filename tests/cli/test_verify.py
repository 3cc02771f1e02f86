"""`verify`: a merged file is proven again, or it is said what is wrong."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


@pytest.fixture
def merged(run, loras, tmp_path):
    output = tmp_path / "merged.safetensors"
    words = ["merge", loras[0], f"{loras[1]}:0.8", f"{loras[2]}:-0.5:0.5", "-o", output]
    assert run(*words, "--preserve", "3").code == 0
    return output


def _changed(path, change):
    """Rewrite a file with its tensors and its header passed through `change`."""
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    change(tensors, metadata)
    save_file(tensors, path, metadata)


def test_a_merge_is_proven_from_what_its_header_names(run, loras, merged):
    ran = run("verify", merged, "--dir", loras[0].parent)
    assert ran.code == 0
    assert "bit for bit" in ran.out and "robot.safetensors at -0.5 (preserved)" in ran.out


def test_sources_are_looked_for_beside_the_file(run, loras, merged, tmp_path):
    missing = run("verify", merged)
    assert missing.code == 1
    assert all(path.name in missing.err for path in loras) and "--dir" in missing.err
    for path in loras:
        path.rename(tmp_path / path.name)
    assert run("verify", merged).code == 0


def test_sources_are_known_by_content_not_by_name(run, loras, merged):
    loras[1].write_bytes(loras[2].read_bytes())
    ran = run("verify", merged, "--dir", loras[0].parent)
    assert ran.code == 1
    assert "`wash.safetensors` is not in" in ran.err and "ink.safetensors" not in ran.err


def test_given_entries_are_preserved_as_they_were(run, loras, merged):
    assert run("verify", merged, loras[0], f"{loras[1]}:0.8", f"{loras[2]}:-0.5:0.5").code == 0
    wrong = run("verify", merged, loras[0], f"{loras[1]}:0.8", f"{loras[2]}:-0.5:0.5", "--preserve", "1")
    assert wrong.code == 1 and "is not what these inputs give" in wrong.err


def test_another_strength_is_told_apart(run, loras, merged):
    ran = run("verify", merged, loras[0], f"{loras[1]}:0.7", f"{loras[2]}:-0.5:0.5")
    assert ran.code == 1
    assert "It says `wash.safetensors` was at 0.8 (CLIP 0.8); given were 0.7 (CLIP 0.7)." in ran.err


def test_another_recipe_is_told_apart(run, loras, merged, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"method": "weighted_average"}')
    ran = run("verify", merged, "--dir", loras[0].parent, "--recipe", recipe)
    assert ran.code == 1 and "is not what these inputs give" in ran.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors, told: _first(tensors, "lora_up").__imul__(1.01), "differs by"),
        (lambda tensors, told: _first(tensors, "lora_down")[:1].zero_(), "differs by"),
        (lambda tensors, told: _first(tensors, "alpha").__imul__(2), "differs by"),
        (lambda tensors, told: _first(tensors, "lora_up")[0, :1].fill_(float("nan")), "differs by"),
        (lambda tensors, told: _drop(tensors), "the merge has 5"),
        (lambda tensors, told: tensors.update(extra=torch.zeros(2)), "not of the merge"),
        (lambda tensors, told: tensors.update({"lora_unet_out_2.diff": torch.zeros(2)}), "not of the merge"),
        (lambda tensors, told: told.update({"lora_alloy.recipe": "{}"}), None),
        (lambda tensors, told: told.update({"lora_alloy.recipe": "nonsense"}), "does not say how"),
        (lambda tensors, told: told.update({"lora_alloy.sources": "[" * 9999}), "does not say how"),
        (lambda tensors, told: _edit_sources(told, strength=2.0), "differs by"),
        (lambda tensors, told: _edit_sources(told, label="../loras/ink.safetensors"), "../loras/ink"),
        (lambda tensors, told: told.pop("lora_alloy.sources"), "does not say what it was made of"),
    ],
)
def test_a_tampered_file_is_found_out(run, loras, merged, change, says):
    _changed(merged, change)
    ran = run("verify", merged, "--dir", loras[0].parent)
    if says is None:  # the recipe's version is filled in: the same recipe
        assert ran.code == 0
    else:
        assert ran.code == 1 and says in ran.err
        assert "Traceback" not in ran.err


def test_a_file_without_sources_is_proven_from_entries(run, loras, merged):
    _changed(merged, lambda tensors, told: told.pop("lora_alloy.sources"))
    words = ["verify", merged, loras[0], f"{loras[1]}:0.8", f"{loras[2]}:-0.5:0.5", "--preserve", "3"]
    assert run(*words).code == 0


def test_verify_tells_machines_too(run, loras, merged):
    ran = run("verify", merged, "--dir", loras[0].parent, "--json", "-")
    told = json.loads(ran.out)
    assert told["command"] == "verify" and told["proof"]["read_error"] == 0.0


def _first(tensors, role):
    return next(value for name, value in tensors.items() if role in name)


def _drop(tensors):
    module = next(iter(tensors)).split(".alpha")[0].split(".lora_")[0]
    for name in [name for name in tensors if name.startswith(module)]:
        del tensors[name]


def _edit_sources(told, **changes):
    sources = json.loads(told["lora_alloy.sources"])
    sources[0] |= changes
    told["lora_alloy.sources"] = json.dumps(sources)


def test_what_preserve_counts_must_be_there(run, loras, merged):
    ran = run("verify", merged, "--dir", loras[0].parent, "--preserve", "1")
    assert ran.code == 1 and "none are" in ran.err
