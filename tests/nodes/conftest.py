"""The suite's only fake of ComfyUI: its `folder_paths`, over folders that a test fills itself."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from lora_alloy.nodes import session
from lora_alloy_testing.builders import toy_lora, write_lora
from lora_alloy_testing.fake_host import STACK, FakeHost, few_candidates


class FakeFolderPaths(ModuleType):
    """As much of it as our nodes call, with its own rules: relative names, first root wins, no `..`."""

    def __init__(self, roots: list[Path]) -> None:
        super().__init__("folder_paths")
        self.models_dir = str(roots[0].parent)
        self.folder_names_and_paths: dict[str, tuple[list[str], set[str]]] = {
            "loras": ([str(root) for root in roots], set())
        }

    def add_model_folder_path(self, folder: str, path: str) -> None:
        self.folder_names_and_paths.setdefault(folder, ([], set()))[0].append(path)

    def get_user_directory(self) -> str:
        return str(Path(self.models_dir) / "user")

    def get_filename_list(self, folder: str) -> list[str]:
        found = {
            str(file.relative_to(root))
            for root in map(Path, self.get_folder_paths(folder))
            for file in root.rglob("*")
            if file.is_file()
        }
        return sorted(found)

    def get_folder_paths(self, folder: str) -> list[str]:
        return list(self.folder_names_and_paths[folder][0])

    def get_full_path(self, folder: str, name: str) -> str | None:
        name = os.path.relpath(os.path.join("/", name), "/")  # noqa: PTH118
        for root in map(Path, self.get_folder_paths(folder)):
            if (root / name).is_file():
                return str(root / name)
        return None


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts empty LoRA files of these relative names into ComfyUI's folder, and returns that folder."""
    root = tmp_path / "loras"
    root.mkdir()
    monkeypatch.setitem(sys.modules, "folder_paths", FakeFolderPaths([root]))

    def put(*names: str) -> Path:
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(name.encode())
        return root

    return put


@pytest.fixture
def host(install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    root = install()
    for seed, (name, *_) in enumerate(STACK):
        write_lora(root / name, toy_lora(seed, rank=2 + seed))
    few_candidates(monkeypatch)
    monkeypatch.setattr(session, "_tunings", {})
    return FakeHost(monkeypatch)
