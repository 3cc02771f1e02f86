"""Old PyTorch files: weights only, and code in them is refused and never runs."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from lora_alloy.core.errors import FileError
from lora_alloy.core.tensorfile import PICKLED, open_tensors

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol")

TENSORS = {"a.lora_up.weight": torch.randn(4, 2), "a.lora_down.weight": torch.randn(2, 3).half()}


@pytest.mark.parametrize("ending", PICKLED)
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "bare pickle"])
def test_tensors_are_read(ending, is_zip, tmp_path):
    path = tmp_path / f"ink{ending}"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=is_zip)
    file = open_tensors(path)
    assert {name: (info.dtype, info.shape) for name, info in file.infos.items()} == {
        "a.lora_up.weight": ("F32", (4, 2)),
        "a.lora_down.weight": ("F16", (2, 3)),
    }
    for name, value in TENSORS.items():
        assert file.read(name).equal(value)
    assert file.size_bytes == path.stat().st_size


def test_tensors_below_a_state_dict_and_beside_numbers_are_read(tmp_path):
    parameter = torch.nn.Parameter(torch.ones(2))
    torch.save({"state_dict": {"a": parameter, "b": 3, "c": "x"}, "epoch": 4}, tmp_path / "x.ckpt")
    file = open_tensors(tmp_path / "x.ckpt")
    assert list(file.infos) == ["a"]
    assert file.read("a").tolist() == [1, 1]
    assert not file.read("a").requires_grad


def test_a_dictionary_that_holds_itself_is_no_endless_loop(tmp_path):
    inside: dict[str, object] = {"a": torch.ones(1)}
    inside["state_dict"] = inside
    torch.save(inside, tmp_path / "x.pt")
    assert list(open_tensors(tmp_path / "x.pt").infos) == ["a"]


class Payload:
    """What a malicious file holds: unpickling it would write a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("ending", [*PICKLED, ".safetensors"])
@pytest.mark.parametrize("how", ["zip", "bare pickle", "plain pickle"])
def test_a_payload_is_refused_and_does_not_run(how, ending, tmp_path):
    path, trace = tmp_path / f"ink{ending}", tmp_path / "it-ran"
    content = {"a": torch.ones(2), "b": Payload(trace)}
    if how == "plain pickle":
        path.write_bytes(pickle.dumps({"b": Payload(trace)}))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    with pytest.raises(FileError, match="ink"):
        open_tensors(path)
    assert not trace.exists()
    # The payload is a real one: unpickled the ordinary way, it runs.
    pickle.loads(pickle.dumps(Payload(trace)))
    assert trace.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([torch.ones(1)], "holds a list, not named tensors"),
        (torch.ones(1), "holds a Tensor, not named tensors"),
        ({"a": np.ones(2)}, "names `numpy.*`, which is no tensor"),
        (torch.nn.Linear(2, 2), "names `torch.nn.modules.*`, which is no tensor"),
    ],
    ids=["a list", "a tensor", "an array", "a module"],
)
def test_other_content_is_refused_with_a_sentence(content, sentence, tmp_path):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(FileError, match=sentence):
        open_tensors(tmp_path / "x.pt")


def test_an_empty_old_file_is_called_empty(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"")
    with pytest.raises(FileError, match="is empty"):
        open_tensors(tmp_path / "x.pt")


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:torch.quantize", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.ones(4, 2).to_sparse(),
        lambda: torch.ones(4, 2).to_sparse_csr(),
        lambda: torch.empty(4, 2, device="meta"),
        lambda: torch.quantize_per_tensor(torch.ones(4, 2), 0.1, 0, torch.qint8),
        lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)]),
        lambda: torch.zeros(1).expand(10**7, 10**6),
    ],
    ids=["sparse", "compressed rows", "without values", "quantised", "nested", "more values than memory"],
)
def test_what_is_no_plain_tensor_is_refused_by_name(made, tmp_path):
    torch.save({"a.lora_up.weight": made(), "a.lora_down.weight": torch.ones(2, 3)}, tmp_path / "odd.pt")
    with pytest.raises(FileError, match=r"'a.lora_up.weight' of `.*odd\.pt` is no plain tensor"):
        open_tensors(tmp_path / "odd.pt")


def test_half_a_character_is_no_name(tmp_path):
    torch.save({"\ud83c.lora_up.weight": torch.ones(4, 2)}, tmp_path / "odd.pt")
    with pytest.raises(FileError, match="is no plain tensor with a name"):
        open_tensors(tmp_path / "odd.pt")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"<!DOCTYPE html><html>log in</html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git-LFS pointer"),
        (b"", "is empty"),
    ],
)
def test_what_is_no_pytorch_file_at_all_is_called_what_it_is(text, says, tmp_path):
    (tmp_path / "x.pt").write_bytes(text)
    with pytest.raises(FileError, match=says):
        open_tensors(tmp_path / "x.pt")
