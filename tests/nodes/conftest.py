"""The suite's only fake of ComfyUI: its `folder_paths`, over LoRA folders that a test fills itself."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


class FakeFolderPaths(ModuleType):
    """As much of it as our nodes call, with its own rules: relative names, first root wins, no `..`."""

    def __init__(self, roots: list[Path]) -> None:
        super().__init__("folder_paths")
        self.roots = roots

    def get_filename_list(self, folder: str) -> list[str]:
        assert folder == "loras"
        found = {
            str(file.relative_to(root)) for root in self.roots for file in root.rglob("*") if file.is_file()
        }
        return sorted(found)

    def get_folder_paths(self, folder: str) -> list[str]:
        assert folder == "loras"
        return [str(root) for root in self.roots]

    def get_full_path(self, folder: str, name: str) -> str | None:
        assert folder == "loras"
        for root in self.roots:
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
