import logging

import pytest

from lora_alloy.core.errors import StackError
from lora_alloy.nodes import bridge


def test_a_lora_is_found_by_its_relative_name(install):
    root = install("style/ink.safetensors")
    assert bridge.find_lora("style/ink.safetensors") == root / "style/ink.safetensors"
    assert bridge.list_loras() == ["style/ink.safetensors"]


def test_an_absolute_path_to_a_lora_outside_the_folders_is_found(install, tmp_path):
    install("ink.safetensors")
    outside = tmp_path / "elsewhere.safetensors"
    outside.write_bytes(b"x")
    assert bridge.find_lora(str(outside)) == outside


def test_an_absolute_path_to_anything_but_a_lora_file_is_not_found(install, tmp_path):
    install("ink.safetensors")
    secret = tmp_path / "secret.txt"
    secret.write_bytes(b"x")
    assert bridge.find_lora(str(secret)) is None
    assert bridge.find_lora(str(tmp_path)) is None


def test_an_absolute_path_that_is_gone_falls_back_to_the_file_name(install):
    root = install("style/ink.safetensors")
    assert bridge.find_lora("/gone/loras/style/ink.safetensors") == root / "style/ink.safetensors"


def test_a_path_cannot_climb_out_of_the_folder(install, tmp_path):
    install("ink.safetensors")
    (tmp_path / "loot.safetensors").write_bytes(b"x")
    assert bridge.find_lora("../loot.safetensors") is None


def test_what_was_assumed_is_a_warning(install, caplog):
    install("a/ink.safetensors", "b/ink.safetensors")
    with caplog.at_level(logging.WARNING, "lora_alloy"):
        assert bridge.find_lora("ink") is not None
    assert "'a/ink.safetensors' is used, not 'b/ink.safetensors'" in caplog.text


def test_a_missing_lora_is_an_error_that_names_the_closest(install):
    install("watercolour.safetensors")
    with pytest.raises(
        StackError, match=r"Here: no LoRA called 'watercolor_v9' is .*'watercolour.safetensors'"
    ):
        bridge.required_name("watercolor_v9", "Here")


def test_a_missing_lora_in_an_empty_folder_says_where_to_put_it(install):
    install()
    with pytest.raises(StackError, match="`loras` folder"):
        bridge.required_name("ink", "Here")
