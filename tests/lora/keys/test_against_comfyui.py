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

# Names that ComfyUI takes for a model too, though they are another's: Flux.2's for Flux.1 and Chroma and the other
# way round, those of class-conditioned UNets, and slices that reach beyond Lumina 2's weights. And those of parameters
# that are not called `weight`.
FLUX_ALONE = (
    r"single_transformer_blocks[._]\d+[._](proj_mlp|norm[._]linear|proj_out)$|[._]ff(_context)?[._]net[._]"
)
FLUX2_ALONE = (
    r"ff(_context)?[._]linear_(in|out)$|to_qkv_mlp_proj$|single_transformer_blocks[._]\d+[._]attn[._]to_out$"
)
CHROMA_LACKS = r"norm1(_context)?[._]linear$|norm[._]linear$"
OTHER_NAMES = {
    "sdxl": r"class_embedding",
    "flux": FLUX2_ALONE,
    "chroma": f"{FLUX2_ALONE}|{CHROMA_LACKS}",
    "lumina2": r"(^|[._])attention[._]to_[kv]$|norm_final$",
    **dict.fromkeys(("flux2", "klein_4b", "klein_9b"), FLUX_ALONE),
}
NOT_A_WEIGHT = re.compile(r"norms?\.(\w+\.)?scale$|norms\.\d\.scale$")
# ComfyUI has no flattened names for norms and embeddings of text encoders, nor for anything in a language model.
FLATTENED_IN_NO_MAP = re.compile(r"lora_te\d?_text_model_.*(norm\d?|_embedding)$|lora_(prior_)?te\d?_")
MAPPED_FLATTENED = re.compile(
    r"lora_(prior_)?te\d?_(text_model_encoder_layers_\d+_(self_attn|mlp)_|encoder_block)"
)
# Versions before 0.14 call the parameter of Flux's norms `scale`, and map no module name to it.
RENAMED = re.compile(r"(query|key)_norm$|distilled_guidance_layer\.norms\.\d$")


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
        family: {
            name: route(*entry) for name, entry in entries.items() if entry[0].endswith((".weight", ".scale"))
        }
        for family, entries in maps.items()
    }


@pytest.fixture(params=FAMILIES, ids=lambda one: one.key)
def family(request, key_maps):
    if request.param.key not in key_maps:
        pytest.skip("this version of ComfyUI does not have the model")
    return request.param


def route(key, part, is_swapped):
    weight = re.sub(r"\.(weight|scale)$", "", key)
    return Route(Target(weight, Part(*part) if part else None), is_swapped)


def test_every_name_that_comfyui_maps_leads_us_to_the_same_weight_and_part(key_maps, family):
    ours = key_map(family)
    other = re.compile(OTHER_NAMES.get(family.key, "^$"))
    theirs = {
        name: route
        for name, route in key_maps[family.key].items()
        if not other.search(name) and not NOT_A_WEIGHT.search(name)
    }
    assert len(theirs) > 1000
    assert {name: resolve(name, ours) for name in theirs} == theirs


def test_comfyui_maps_every_name_we_write_for_it(key_maps, family):
    theirs = key_maps[family.key]
    has_renamed = any(NOT_A_WEIGHT.search(name) for name in theirs)
    for target in names_of(family):
        name = spell(target, "comfyui", family)
        if has_renamed and name and RENAMED.search(name):
            continue
        assert theirs.get(name) == (Route(target) if name else None), target


def test_we_know_every_weight_that_comfyui_maps(key_maps, family):
    weights = {target.weight for target in names_of(family)}
    gone = {"diffusion_model.norm_final"}  # of Lumina 2, which later versions leave out
    assert {route.target.weight for route in key_maps[family.key].values()} - gone == weights


@pytest.mark.parametrize("naming", NAMINGS)
def test_the_map_of_comfyui_answers_our_names_as_ours_does_or_not_at_all(key_maps, family, naming):
    """Where it does not, our own map is asked: the rows that ComfyUI lacks."""
    theirs, ours = key_maps[family.key], key_map(family)
    wrong = {}
    for target in names_of(family):
        name = spell(target, naming, family)
        found = resolve(name, theirs) if name else None
        if (
            found is not None
            and found != ours[name]
            and not re.search(OTHER_NAMES.get(family.key, "^$"), name)
        ):
            wrong[name] = found
    assert wrong == {}


def test_lumina_2s_slices_reach_beyond_its_weight_in_comfyui_and_not_in_ours(key_maps):
    name = "diffusion_model.layers.0.attention.to_v"
    found = resolve(name, key_map(next(one for one in FAMILIES if one.key == "lumina2")))
    assert found == Route(Target("diffusion_model.layers.0.attention.qkv", Part(0, 3072, 768)))
    theirs = key_maps["lumina2"].get(name)
    if theirs is None:
        pytest.skip("this version of ComfyUI does not map it")
    assert theirs.target.part.start + theirs.target.part.length > 3840


LISTS = {"": "lora/keys/data", "by-hand": "tests/support/lora_alloy_testing/released"}


@pytest.mark.parametrize("how", LISTS)
def test_the_listed_modules_are_those_of_this_comfyui(how, comfy_tree, tmp_path):
    """The lists are what the script writes: from the newest version, which has every model."""
    if int(comfy_tree.version.split(".")[1]) < 19:
        pytest.skip("this version of ComfyUI does not have all models")
    command = [sys.executable, "-m", "lora_alloy_testing.write_key_data", str(comfy_tree.path), str(tmp_path)]
    command += [how] * bool(how)
    ran = subprocess.run(command, env=comfy_tree.environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    ours = Path(__file__).parents[3] / LISTS[how]
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        path.name: path.read_text(encoding="utf-8") for path in ours.iterdir()
    }
