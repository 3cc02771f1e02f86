"""Fixtures over every ComfyUI checkout there is: a test runs once per version, or says why it does not.

A `conftest.py` imports them by name:

    from lora_alloy_testing.comfy_fixtures import comfy_pack, comfy_server, comfy_tree, tiny_models

- `comfy_tree`: the checkout, `ComfyTree(path, version)`.
- `comfy_pack`: this checkout, or `None` as long as it has no nodes.
- `comfy_server`: one running server per version for the whole session, with the pack.
- `tiny_models`: by family, the weights and names that version gives the tiny models; needs no server.

Outputs share one folder for the session: give them names of the test's own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .comfy_server import ComfyServer
from .comfy_tree import CACHE, VARIABLE, ComfyTree, find_trees
from .tiny_models import TinyModel, read_tiny_models

__all__ = ["comfy_pack", "comfy_server", "comfy_tree", "tiny_models"]

ROOT = Path(__file__).resolve().parents[3]
_NONE = f"no ComfyUI checkout: {VARIABLE} is not set and there is no {CACHE}/comfyui-*"


@pytest.fixture(
    scope="session",
    params=find_trees() or [pytest.param(None, marks=pytest.mark.skip(reason=_NONE))],
    ids=lambda tree: f"comfyui-{tree}",
)
def comfy_tree(request: pytest.FixtureRequest) -> ComfyTree:
    tree: ComfyTree = request.param
    missing = tree.missing()
    if missing:
        pytest.skip(
            f"ComfyUI {tree} at {tree.path} needs modules that are not installed: {', '.join(missing)}"
        )
    return tree


@pytest.fixture(scope="session")
def comfy_pack() -> Path | None:
    return ROOT if (ROOT / "nodes" / "__init__.py").exists() else None


@pytest.fixture(scope="session")
def comfy_server(
    comfy_tree: ComfyTree, comfy_pack: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComfyServer]:
    base_path = tmp_path_factory.mktemp(f"comfyui-{comfy_tree}")
    with ComfyServer(comfy_tree, base_path, comfy_pack) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_models(comfy_tree: ComfyTree, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    return read_tiny_models(comfy_tree, tmp_path_factory.mktemp("tiny-models"))
