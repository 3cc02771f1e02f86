"""Files that are not what they should be: each function makes one in a folder and returns its path."""

import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save, save_file
from torch import Tensor

NAME = "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q"


class Payload:
    """What a hostile pickle does when it is opened carelessly: it makes a file called `ran`."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder / "ran")

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (self.place,)


def lora(rank: int = 4, name: str = NAME, size: int = 640, seed: int = 0) -> dict[str, Tensor]:
    """The tensors of a sound LoRA of one module."""
    chance = torch.Generator().manual_seed(seed)
    return {
        f"{name}.lora_up.weight": torch.randn(size, rank, generator=chance) * 0.02,
        f"{name}.lora_down.weight": torch.randn(rank, size, generator=chance) * 0.02,
        f"{name}.alpha": torch.tensor(float(rank)),
    }


def missing(folder: Path) -> Path:
    return folder / "missing.safetensors"


def a_folder(folder: Path) -> Path:
    (folder / "folder.safetensors").mkdir()
    return folder / "folder.safetensors"


def empty(folder: Path) -> Path:
    return _written(folder / "empty.safetensors", b"")


def answer_of_a_site(folder: Path) -> Path:
    text = b'{"error":"Unauthorized","message":"You need to be logged in to download this model"}'
    return _written(folder / "answer.safetensors", text)


def zeros(folder: Path) -> Path:
    return _written(folder / "zeros.safetensors", bytes(5000))


def gguf(folder: Path) -> Path:
    return _written(folder / "model.gguf", b"GGUF\x03\x00\x00\x00" + bytes(100))


def link_to_itself(folder: Path) -> Path:
    (folder / "loop.safetensors").symlink_to(folder / "loop.safetensors")
    return folder / "loop.safetensors"


def link_to_nothing(folder: Path) -> Path:
    (folder / "dangling.safetensors").symlink_to(folder / "elsewhere.safetensors")
    return folder / "dangling.safetensors"


def name_twice(folder: Path) -> Path:
    entry = json.dumps({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]})
    raw = f'{{"a.lora_up.weight": {entry}, "a.lora_up.weight": {entry}}}'.encode()
    return _written(folder / "twice.safetensors", len(raw).to_bytes(8, "little") + raw + bytes(16))


def list_of_tensors(folder: Path) -> Path:
    torch.save(list(lora().values()), folder / "list.pt")
    return folder / "list.pt"


def seven_bytes(folder: Path) -> Path:
    return _written(folder / "seven.safetensors", b"\x01\x00\x00\x00\x00\x00\x00")


def web_page(folder: Path) -> Path:
    page = b"\n<!DOCTYPE html><html><body>Please log in to download this model.</body></html>" * 20
    return _written(folder / "page.safetensors", page)


def lfs_pointer(folder: Path) -> Path:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab" * 32 + "\nsize 228452608\n"
    return _written(folder / "pointer.safetensors", text.encode())


def zip_archive(folder: Path) -> Path:
    path = folder / "zipped.safetensors"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ink.safetensors", save(lora()))
    return path


def cut_body(folder: Path) -> Path:
    return _written(folder / "cut.safetensors", save(lora())[:-1000])


def cut_header(folder: Path) -> Path:
    return _written(folder / "cut_header.safetensors", save(lora())[:100])


def long_header(folder: Path) -> Path:
    return _written(folder / "long_header.safetensors", (1 << 40).to_bytes(8, "little") + b"{}" * 50)


def header_of_no_json(folder: Path) -> Path:
    return _written(folder / "no_json.safetensors", (100).to_bytes(8, "little") + b"\xff\xfe{" * 60)


def deep_header(folder: Path) -> Path:
    raw = b"[" * 100_000 + b"]" * 100_000
    return _written(folder / "deep.safetensors", len(raw).to_bytes(8, "little") + raw)


def overlapping_offsets(folder: Path) -> Path:
    entry = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
    header = {f"{NAME}.lora_up.weight": entry, f"{NAME}.lora_down.weight": entry}
    return _with_header(folder / "overlapping.safetensors", header, bytes(128))


def negative_shape(folder: Path) -> Path:
    entry = {"dtype": "F32", "shape": [-4, -4], "data_offsets": [0, 64]}
    return _with_header(folder / "negative.safetensors", {f"{NAME}.lora_up.weight": entry}, bytes(64))


def hostile_pickle(folder: Path) -> Path:
    return _written(folder / "hostile.pt", pickle.dumps({"state_dict": Payload(folder)}))


def hostile_torch_zip(folder: Path) -> Path:
    torch.save({"weight": torch.zeros(1), "payload": Payload(folder)}, folder / "hostile_zip.pt")
    return folder / "hostile_zip.pt"


def renamed_pickle(folder: Path) -> Path:
    return _written(folder / "renamed.safetensors", pickle.dumps(Payload(folder)))


def nan(folder: Path) -> Path:
    tensors = lora()
    tensors[f"{NAME}.lora_up.weight"][3, 1] = float("nan")
    return _saved(folder / "nan.safetensors", tensors)


def infinite(folder: Path) -> Path:
    tensors = lora()
    tensors[f"{NAME}.lora_down.weight"][0, 5] = float("inf")
    return _saved(folder / "infinite.safetensors", tensors)


def nan_alpha(folder: Path) -> Path:
    return _saved(folder / "nan_alpha.safetensors", lora() | {f"{NAME}.alpha": torch.tensor(float("nan"))})


def mismatched_ranks(folder: Path) -> Path:
    tensors = lora() | {f"{NAME}.lora_down.weight": torch.zeros(8, 640)}
    return _saved(folder / "mismatched.safetensors", tensors)


def rank_zero(folder: Path) -> Path:
    tensors = {f"{NAME}.lora_up.weight": torch.zeros(640, 0), f"{NAME}.lora_down.weight": torch.zeros(0, 640)}
    return _saved(folder / "rank_zero.safetensors", tensors)


def up_alone(folder: Path) -> Path:
    tensors = lora()
    del tensors[f"{NAME}.lora_down.weight"]
    return _saved(folder / "up_alone.safetensors", tensors)


def whole_numbers(folder: Path) -> Path:
    tensors = {name: value.to(torch.int32) for name, value in lora().items()}
    return _saved(folder / "whole_numbers.safetensors", tensors)


def checkpoint(folder: Path) -> Path:
    names = [f"model.diffusion_model.input_blocks.{block}.0.in_layers.2.weight" for block in range(30)]
    return _saved(folder / "checkpoint.safetensors", {name: torch.zeros(4, 4) for name in names})


def no_tensors(folder: Path) -> Path:
    return _with_header(folder / "no_tensors.safetensors", {"__metadata__": {"format": "pt"}}, b"")


def other_tensors(folder: Path) -> Path:
    return _saved(folder / "embedding.safetensors", {"emb_params": torch.zeros(4, 768)})


BAD_TO_OPEN: Mapping[str, Callable[[Path], Path]] = {
    made.__name__: made
    for made in (
        missing,
        a_folder,
        empty,
        seven_bytes,
        answer_of_a_site,
        zeros,
        gguf,
        link_to_itself,
        link_to_nothing,
        name_twice,
        list_of_tensors,
        web_page,
        lfs_pointer,
        zip_archive,
        cut_body,
        cut_header,
        long_header,
        header_of_no_json,
        deep_header,
        overlapping_offsets,
        negative_shape,
        hostile_pickle,
        hostile_torch_zip,
        renamed_pickle,
        mismatched_ranks,
        rank_zero,
        up_alone,
        checkpoint,
        no_tensors,
        other_tensors,
    )
}
BAD_TO_READ: Mapping[str, Callable[[Path], Path]] = {
    made.__name__: made for made in (nan, infinite, nan_alpha, whole_numbers)
}


def _written(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def _saved(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, path)
    return path


def _with_header(path: Path, header: object, body: bytes) -> Path:
    raw = json.dumps(header).encode()
    return _written(path, len(raw).to_bytes(8, "little") + raw + body)
