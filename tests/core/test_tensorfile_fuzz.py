"""Any bytes whatever: a file opens and reads, or is refused with a sentence; nothing else escapes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from lora_alloy.core.errors import FileError
from lora_alloy.core.tensorfile import open_tensors

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis makes up the damaged files")
st = hypothesis.strategies

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol")

SOUND = save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.float16)}, {"k": "v"})
quick = hypothesis.settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)


def opens_or_is_refused(path: Path) -> None:
    try:
        file = open_tensors(path)
        for name in file.infos:
            file.read(name)
    except FileError as problem:
        assert path.name in str(problem)


@quick
@hypothesis.given(at=st.integers(0, len(SOUND) - 1), value=st.integers(0, 255))
def test_one_changed_byte_never_crashes_the_reader(at, value, tmp_path):
    changed = bytearray(SOUND)
    changed[at] = value
    (tmp_path / "x.safetensors").write_bytes(changed)
    opens_or_is_refused(tmp_path / "x.safetensors")


@quick
@hypothesis.given(size=st.integers(0, len(SOUND)))
def test_a_file_cut_anywhere_never_crashes_the_reader(size, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(SOUND[:size])
    opens_or_is_refused(tmp_path / "x.safetensors")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
tensor_like = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BOOL", "F4", ""]) | json_values,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-2, 40), min_size=2, max_size=2) | json_values,
    }
)


@quick
@hypothesis.given(header=st.dictionaries(st.text(max_size=6), tensor_like | json_values, max_size=4))
def test_no_header_crashes_the_reader(header, tmp_path):
    raw = json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(32))
    opens_or_is_refused(tmp_path / "x.safetensors")


@quick
@hypothesis.given(content=st.binary(max_size=200))
def test_no_bytes_crash_the_reader(content, tmp_path):
    for ending in ("safetensors", "pt"):
        path = tmp_path / f"x.{ending}"
        path.write_bytes(content)
        opens_or_is_refused(path)


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Old PyTorch files: today's zip, and the bare pickle of before."""
    folder = tmp_path_factory.mktemp("pickled")
    for is_zip in (True, False):
        torch.save({"a": torch.ones(3)}, folder / f"{is_zip}.pt", _use_new_zipfile_serialization=is_zip)
    return [path.read_bytes() for path in sorted(folder.iterdir())]


@quick
@hypothesis.given(which=st.integers(0, 1), at=st.floats(0, 1), value=st.integers(0, 255))
def test_one_changed_byte_never_crashes_the_reader_of_old_files(which, at, value, pickled, tmp_path):
    changed = bytearray(pickled[which])
    changed[int(at * (len(changed) - 1))] = value
    (tmp_path / "x.pt").write_bytes(changed)
    opens_or_is_refused(tmp_path / "x.pt")


@quick
@hypothesis.given(which=st.integers(0, 1), share=st.floats(0, 1))
def test_old_files_cut_anywhere_never_crash_the_reader(which, share, pickled, tmp_path):
    (tmp_path / "x.pt").write_bytes(pickled[which][: int(share * len(pickled[which]))])
    opens_or_is_refused(tmp_path / "x.pt")
