"""Half characters, out of names that are cut off or no UTF-8, reach nobody who would break on them."""

import logging
import os
import sys
from pathlib import Path

import pytest

from lora_alloy.core.errors import FileError
from lora_alloy.core.log import log
from lora_alloy.core.text import whole
from lora_alloy.lora.file import open_lora
from lora_alloy.nodes import LOG_PREFIX
from lora_alloy_testing.small_loras import write_small


@pytest.mark.parametrize("text", ["", "ink", "日本 🎨", "a\0b\x1b"])
def test_whole_text_stays(text):
    assert whole(text) == text


def test_half_characters_are_spelled_out():
    assert whole("ink \ud83c") == "ink \\ud83c"
    assert str(FileError("`\udcff` is gone.")) == "`\\udcff` is gone."


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_the_label_of_a_file_whose_name_is_no_utf8_can_be_sent(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/ink\xff.safetensors"))
    assert open_lora(write_small(path)).label == "ink\\udcff.safetensors"


def test_log_lines_of_the_nodes_can_be_sent(caplog):
    with caplog.at_level(logging.INFO, "lora_alloy"):
        log.info("%s is used", "ink\udcff")
    assert caplog.messages == [f"{LOG_PREFIX} ink\\udcff is used"]
