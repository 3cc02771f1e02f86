"""`docs/compatibility.md` says what we and others read of every family's files, and that is what they read.

Every file is a real one: names of a trainer, shapes of the released model, values of noise. What becomes of it is
compared with the textbook's formula in float64. `lora_alloy_testing.write_compatibility` renews the document.
"""

import importlib.metadata
from pathlib import Path

import pytest
import torch

from lora_alloy.lora.file import lora_in_memory
from lora_alloy.lora.keys import FAMILIES
from lora_alloy_testing import compatibility
from lora_alloy_testing.comfy_fixtures import comfy_tree
from lora_alloy_testing.compatibility import OURS
from lora_alloy_testing.compatibility_page import page
from lora_alloy_testing.format_cases import FORMAT_CASES

__all__ = ["comfy_tree"]

DOCUMENT = Path(__file__).parents[2] / "docs/compatibility.md"
STATED = compatibility.stored()
TOLERANCE = 1e-5
# Two text encoders of ACE-Step 1.5 have the same names, and the file does not say which of them it is for.
UNDECIDED = {("ace_step_15", "qwen3_06b: ComfyUI, encoder left out")}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.key)
def test_we_read_every_file_as_stated_and_by_the_formula(family):
    counts, worst = compatibility.read_by_us(family)
    assert worst < TOLERANCE
    assert counts == STATED["read"][OURS][family.key]


def test_we_read_every_module_of_every_naming():
    whole = STATED["modules"]
    assert whole == compatibility.modules()
    less = {
        (family, label)
        for family, files in whole.items()
        for label, total in files.items()
        if STATED["read"][OURS][family][label] < total
    }
    assert less == UNDECIDED


def test_we_read_every_format_as_stated():
    assert compatibility.formats_read_by_us() == STATED["formats"][OURS]
    assert set(STATED["formats"][OURS].values()) == {"same"}


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str
)
@pytest.mark.parametrize("case", FORMAT_CASES, ids=lambda case: case.title)
def test_a_format_in_another_precision_means_the_numbers_stored_in_it(case, dtype):
    """The same file with these numbers widened to float32, for which the formula holds, is read alike."""
    stored = {
        name: value.to(dtype) if value.numel() > 1 and value.is_floating_point() else value
        for name, value in case.tensors.items()
    }
    widened = {name: value.float() if value.is_floating_point() else value for name, value in stored.items()}
    expected, found = (
        file.load(file.modules[case.module], case.base).flat().double()
        for file in (lora_in_memory("ink", tensors, {}) for tensors in (widened, stored))
    )
    assert torch.linalg.norm(found - expected) <= TOLERANCE * torch.linalg.norm(expected)


def test_the_document_is_written_from_what_is_stated():
    assert page(STATED) == DOCUMENT.read_text(encoding="utf-8")


def test_nobody_is_stated_to_read_a_module_that_we_do_not():
    more = {
        (reader, family, label)
        for reader, families in STATED["read"].items()
        for family, files in families.items()
        for label, count in files.items()
        if count > STATED["read"][OURS][family][label]
    }
    assert more == set()


@pytest.mark.comfy
def test_comfyui_reads_what_is_stated_and_adds_what_we_add(comfy_tree, tmp_path):
    name = f"ComfyUI {comfy_tree.version}"
    if name not in STATED["read"]:
        pytest.skip(f"the document does not speak of {name}")
    found = compatibility.read_by_comfyui(comfy_tree, tmp_path)
    assert max(one[2] for files in found["families"].values() for one in files.values()) < TOLERANCE
    assert compatibility.counts_of(found["families"], 0) == STATED["read"][name]
    assert compatibility.counts_of(found["families"], 1) == STATED["strayed"][name]
    assert found["formats"] == STATED["formats"][name]


@pytest.mark.filterwarnings("ignore")  # they are another library's
@pytest.mark.parametrize("family", ["sdxl", "flux", "z_image", "wan_1_3b"])
def test_diffusers_reads_what_is_stated(family):
    pytest.importorskip("diffusers", reason="diffusers is one of the readers")
    name = f"diffusers {importlib.metadata.version('diffusers')}"
    if name not in STATED["read"]:
        pytest.skip(f"the document does not speak of {name}")
    from lora_alloy_testing import read_names_in_diffusers

    assert read_names_in_diffusers.read([family])[family] == STATED["read"][name][family]
