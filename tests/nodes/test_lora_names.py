import pytest

from lora_alloy.nodes.lora_names import match, nearest

LISTED = [
    "ink.safetensors",
    "style/Watercolour v2.safetensors",
    "style/oil.safetensors",
    "sdxl/oil.safetensors",
    "style/oil.pt",
    "people/anna.fp16.safetensors",
    "cafe\u0301.safetensors",
]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ink.safetensors", "ink.safetensors"),
        ("  ink.safetensors ", "ink.safetensors"),
        ("style/oil.safetensors", "style/oil.safetensors"),
        ("style\\oil.safetensors", "style/oil.safetensors"),
        ("./style/oil.pt", "style/oil.pt"),
        ("Style/OIL.safetensors", "style/oil.safetensors"),
        ("ink", "ink.safetensors"),
        ("INK", "ink.safetensors"),
        ("sdxl/oil", "sdxl/oil.safetensors"),
        ("watercolour V2", "style/Watercolour v2.safetensors"),
        ("people/anna.fp16", "people/anna.fp16.safetensors"),
        ("anna.fp16", "people/anna.fp16.safetensors"),
        ("C:\\ComfyUI\\models\\loras\\sdxl\\oil.safetensors", "sdxl/oil.safetensors"),
        ("/home/me/models/loras/ink.safetensors", "ink.safetensors"),
        ("caf\u00e9.safetensors", "cafe\u0301.safetensors"),
    ],
)
def test_a_name_that_can_only_mean_one_file_finds_it_without_a_remark(name, meant):
    found = match(name, LISTED)
    assert found is not None
    assert (found.name, found.note) == (meant, "")


def test_a_backslash_list_is_found_by_a_name_with_slashes():
    found = match("style/oil.safetensors", ["style\\oil.safetensors"])
    assert found is not None and found.name == "style\\oil.safetensors"


def test_an_ambiguous_base_name_takes_the_first_by_ending_and_alphabet_and_says_so():
    found = match("oil", LISTED)
    assert found is not None
    assert found.name == "sdxl/oil.safetensors"
    assert "'style/oil.safetensors'" in found.note and "'style/oil.pt'" in found.note


def test_safetensors_is_preferred_to_a_pickle_of_the_same_name():
    found = match("style/oil", LISTED)
    assert found is not None
    assert found.name == "style/oil.safetensors" and "'style/oil.pt'" in found.note


def test_the_order_of_the_list_does_not_matter():
    assert match("oil", LISTED) == match("oil", LISTED[::-1])


def test_a_file_that_moved_to_another_folder_is_used_and_said():
    found = match("old/ink.safetensors", ["new/ink.safetensors"])
    assert found is not None
    assert found.name == "new/ink.safetensors" and "'old/ink.safetensors' is not installed" in found.note


def test_a_fragment_finds_the_one_name_that_contains_it_and_says_so():
    found = match("colour", LISTED)
    assert found is not None
    assert found.name == "style/Watercolour v2.safetensors" and "contains" in found.note


@pytest.mark.parametrize("name", ["", "   ", "/", "nothing", "oi", "a\0b", "style", "ink.ckpt"])
def test_a_name_that_fits_nothing_is_not_found(name):
    assert match(name, LISTED) is None


def test_a_fragment_of_several_names_is_not_guessed():
    assert match("water", ["watercolour.safetensors", "underwater.safetensors"]) is None


def test_the_closest_names_are_offered_first():
    assert nearest("watercolor v2", LISTED)[0] == "style/Watercolour v2.safetensors"
    assert nearest("oul.safetensors", LISTED)[:1] == ["style/oil.safetensors"]
    assert nearest("zzzzzz", LISTED) == []
