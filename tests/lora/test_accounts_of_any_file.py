"""Whatever the names in a file are: used, skipped and unknown are all its tensors, or the file is refused."""

import pytest
import torch

from lora_alloy.core.errors import FileError
from lora_alloy.lora.file import lora_in_memory
from lora_alloy_testing.builders import SPELLINGS, TOY, account_for_all, tensors_of, toy_lora

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis makes up the names")
st = hypothesis.strategies

ENDINGS = [
    *(end for pair in SPELLINGS.values() for end in pair),
    *(".alpha", ".lora_mid.weight", ".dora_scale", ".lora_magnitude_vector", ".magnitude", ".lora_B.bias"),
    *(".hada_w1_a", ".lokr_w2", ".oft_blocks", ".rescale", ".on_input", ".diff", ".diff_b", ".w_norm"),
    *(".b_norm", ".set_weight", ".reshape_weight", ".a1.weight", ".bm.weight", ".weight", ".bias", ".scalar"),
    *("", ".lora_A.style.weight", ".lora_up", "_lora.up", ".lora.up.bias"),
]

module_names = st.sampled_from(
    [list(TOY)[0], list(TOY)[2], "unet.mid_block.conv", "blocks.0.attn.q", "bundle_emb.x", ""]
)
made_up_names = st.builds(str.__add__, module_names, st.sampled_from(ENDINGS)) | st.text(max_size=12)
shapes = st.sampled_from([(4, 2), (2, 3), (), (1,), (4, 2, 1, 1), (2, 3, 3, 3), (2, 2, 3, 3), (0, 4), (5,)])


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True, database=None)
@hypothesis.given(extra=st.dictionaries(made_up_names, shapes, max_size=8))
def test_used_skipped_and_unknown_are_all_tensors_whatever_their_names(extra):
    tensors = tensors_of(toy_lora(1)) | {name: torch.ones(shape) for name, shape in extra.items()}
    try:
        file = lora_in_memory("ink", tensors, {})
    except FileError as problem:
        assert "ink" in str(problem)  # damage is refused as a whole, with a sentence
        return
    account_for_all(file, tensors)


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    place=st.integers(0, 11),
    at=st.integers(0, 60),
    letter=st.characters(codec="ascii", categories=["L", "N", "P"]),
)
def test_a_changed_letter_in_a_name_loses_no_tensor_silently(place, at, letter):
    """Either the file is refused, or every tensor stands in the account under its name."""
    tensors = tensors_of(toy_lora(1, alpha=2.0))
    name = sorted(tensors)[place]
    at %= len(name)
    changed = name[:at] + letter + name[at + 1 :]
    tensors = {(changed if key == name else key): value for key, value in tensors.items()}
    try:
        file = lora_in_memory("ink", tensors, {})
    except FileError as problem:
        assert "ink" in str(problem)
        return
    account_for_all(file, tensors)
