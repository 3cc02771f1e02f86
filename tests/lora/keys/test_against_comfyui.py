"""ComfyUI's own key maps of the full-size models, in every version at hand, agree with ours."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lora_alloy.lora.keys import FAMILIES, NAMINGS, key_map, resolve, spell
from lora_alloy.lora.keys.table import names_of
from lora_alloy.lora.target import Part, Route, Target
from lora_alloy_testing.comfy_fixtures import comfy_tree

__all__ = ["comfy_tree"]

pytestmark = pytest.mark.comfy

# Names of Flux.2, Cascade or class-conditioned UNets, which ComfyUI takes for these models too, and those of
# parameters that are not called `weight`.
OTHER_NAMES = re.compile(
    r"class_embedding|lora_prior_te_|ff(_context)?[._]linear_(in|out)$|to_qkv_mlp_proj$"
    r"|single_transformer_blocks[._]\d+[._]attn[._]to_out$|_norm\.scale$"
)
# ComfyUI has no flattened names for norms and embeddings of text encoders, nor everywhere for Flux's norms.
FLATTENED_WITHOUT_FACTORS = re.compile(
    r"lora_te\d?_text_model_.*(norm\d?|_embedding)$|lora_unet_.*_(query|key)_norm$"
)


@pytest.fixture(scope="module")
def key_maps(comfy_tree, tmp_path_factory):
    """By family, ComfyUI's names of weights, and where each leads."""
    out = tmp_path_factory.mktemp("key-maps") / "maps.json"
    script = Path(__file__).with_name("dump_key_maps.py")
    command = [sys.executable, str(script), str(comfy_tree.path), str(out)]
    ran = subprocess.run(command, env=comfy_tree.environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    maps = json.loads(out.read_text(encoding="utf-8"))
    return {
        family: {name: route(*entry) for name, entry in entries.items() if not entry[0].endswith(".bias")}
        for family, entries in maps.items()
    }


def route(key, part, is_swapped):
    weight = re.sub(r"\.(weight|scale)$", "", key)
    return Route(Target(weight, Part(*part) if part else None), is_swapped)


@pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.key)
def test_every_name_that_comfyui_maps_leads_us_to_the_same_weight_and_part(key_maps, one):
    ours = key_map(one)
    theirs = {name: route for name, route in key_maps[one.key].items() if not OTHER_NAMES.search(name)}
    assert len(theirs) > 1500
    assert {name: resolve(name, ours) for name in theirs} == theirs


@pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.key)
def test_comfyui_maps_every_name_we_write_for_it(key_maps, one):
    theirs = key_maps[one.key]
    assert {target: theirs.get(spell(target, "comfyui", one)) for target in names_of(one)} == {
        target: Route(target) for target in names_of(one)
    }


@pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.key)
def test_we_know_every_weight_that_comfyui_maps(key_maps, one):
    weights = {target.weight for target in names_of(one)}
    assert {route.target.weight for route in key_maps[one.key].values()} == weights


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("one", FAMILIES, ids=lambda one: one.key)
def test_the_map_of_comfyui_answers_our_names_as_ours_does(key_maps, one, naming):
    theirs, ours = key_maps[one.key], key_map(one)
    names = [spell(target, naming, one) for target in names_of(one)]
    for name in names:
        if name is not None and not FLATTENED_WITHOUT_FACTORS.match(name):
            assert resolve(name, theirs) == ours[name], name
