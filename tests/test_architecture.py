"""Imports point down, nothing happens on import, files stay small: read off every file's syntax tree."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = {
    "analysis",
    "autotuner",
    "cache",
    "checkpoint",
    "core",
    "enhance",
    "lora",
    "memory",
    "merging",
    "sparsify",
}
MAY_IMPORT = {
    "core": set(),
    "lora": {"core"},
    "sparsify": {"core"},
    "enhance": {"core"},
    "cache": {"core"},
    "analysis": {"core", "lora"},
    "merging": {"core", "lora", "sparsify", "enhance", "analysis"},
    "checkpoint": {"core", "lora", "merging"},
    "memory": {"core", "lora", "cache", "merging", "analysis"},
    "autotuner": {"core", "lora", "cache", "memory", "merging", "analysis"},
    "nodes": {*ENGINE, "api"},
    "cli": {*ENGINE, "api"},
    "api": ENGINE,
    "__init__": {"nodes", "api"},
    "__main__": {"cli"},
    "alloy": set(),
}
LIBRARIES = {"torch", "safetensors", "numpy"}
COMFYUI = {"comfy", "comfy_api", "comfy_execution", "execution", "folder_paths", "nodes", "server"}
DECORATORS = {"cache", "contextmanager", "dataclass", "final", "lru_cache", "no_grad", "overload"}
QUIET = (
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)


def _sources(*, ours: bool) -> Iterator[tuple[str, str]]:
    """Every Python file's path and text; `ours` leaves the tests and benchmarks out."""
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith(".") or top.name in ("build", "dist", "node_modules"):
            continue
        if ours and top.name in ("tests", "benchmarks"):
            continue
        for path in [top] if top.suffix == ".py" else sorted(top.rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def _imports(path: str, text: str) -> Iterator[tuple[int, str, bool]]:
    """The line of every import, the folder or library it leads to, and whether it is relative."""
    package = path.split("/")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0], False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, str(node.module).split(".")[0], False
        elif isinstance(node, ast.ImportFrom):
            above = len(package) - node.level + 1
            where = [*package[: max(above, 0)], *(node.module or "").split(".")]
            names = [alias.name for alias in node.names] if not any(where) else [next(filter(None, where))]
            yield from ((node.lineno, name if above >= 0 else "..", True) for name in names)


def _breaches(path: str, text: str) -> Iterator[str]:
    """What a file imports and must not, one sentence each."""
    top = path.split("/")[0].removesuffix(".py")
    if top not in MAY_IMPORT:
        yield f"{path}: `{top}` has no row in the import table"
        return
    for line, name, is_relative in _imports(path, text):
        # What is neither a folder nor a file of ours is the version and the like, from the inert root.
        if is_relative and name in {*MAY_IMPORT, ".."} - {top, *MAY_IMPORT[top]}:
            yield f"{path}:{line}: `{top}` must not import `{name}`"
        elif not is_relative and name in {"lora_alloy", *MAY_IMPORT} - {"nodes"}:
            yield f"{path}:{line}: `{name}` is our own, and imported relatively"
        elif not is_relative and name in COMFYUI and path != "nodes/bridge.py":
            yield f"{path}:{line}: only nodes/bridge.py knows ComfyUI's `{name}`"
        elif not is_relative and name not in {*LIBRARIES, *COMFYUI, *sys.stdlib_module_names}:
            yield f"{path}:{line}: `{name}` is a dependency that ComfyUI does not promise"
        elif top == "alloy" and name not in sys.stdlib_module_names:
            yield f"{path}:{line}: the launcher runs before `{name}` is installed"


def _stirrings(path: str, text: str) -> Iterator[str]:
    """Statements that do something when a file is imported."""
    for node in ast.parse(text).body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (is_text or isinstance(node, (*QUIET, ast.If))):
            yield f"{path}:{node.lineno}: runs on import"
        for decorator in getattr(node, "decorator_list", []):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(called).split(".")[-1] not in DECORATORS:
                yield f"{path}:{node.lineno}: `@{ast.unparse(decorator)}` runs on import"


def _swallowing(path: str, text: str) -> Iterator[str]:
    """Handlers that catch everything, but for those that clean up and raise it again."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {ast.unparse(one) if one else "everything" for one in caught}
        if names & {"everything", "Exception"}:
            yield f"{path}:{node.lineno}: catches {', '.join(names)}"
        last = node.body[-1]
        if "BaseException" in names and not (isinstance(last, ast.Raise) and last.exc is None):
            yield f"{path}:{node.lineno}: keeps a BaseException to itself"


def test_every_import_points_down() -> None:
    breaches = [breach for source in _sources(ours=True) for breach in _breaches(*source)]
    assert not breaches, "\n".join(breaches)


def test_a_breach_is_found_and_named() -> None:
    def only(path: str, text: str) -> str:
        return "\n".join(_breaches(path, text))

    assert only("core/rng.py", "def f():\n    from ..lora import file") == (
        "core/rng.py:2: `core` must not import `lora`"
    )
    assert "must not import `nodes`" in only("merging/engine.py", "from .. import nodes")
    assert "must not import `..`" in only("cli/x.py", "from ...elsewhere import x")
    assert "imported relatively" in only("cli/x.py", "import lora_alloy.core.log")
    assert "only nodes/bridge.py" in only("nodes/x.py", "from comfy.utils import y")
    assert "ComfyUI does not promise" in only("analysis/x.py", "import scipy.linalg")
    assert "no row" in only("helpers/x.py", "")
    assert (
        only("merging/methods/x.py", "from ...core import log\nfrom . import y\nfrom ... import __version__")
        == ""
    )
    assert len(list(_stirrings("x.py", "print()\n@register('ties')\ndef f(): ..."))) == 2
    assert len(list(_swallowing("x.py", "try: ...\nexcept (OSError, Exception): raise"))) == 1
    assert list(_swallowing("x.py", "try: ...\nexcept BaseException:\n    f()\n    raise")) == []


def test_the_root_imports_nothing_of_ours_before_it_is_asked() -> None:
    body = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8")).body
    assert not [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]


def test_importing_a_file_only_defines_things() -> None:
    engine = [source for source in _sources(ours=True) if source[0] not in ("__main__.py", "alloy.py")]
    found = [stirring for source in engine for stirring in _stirrings(*source)]
    assert not found, "\n".join(found)


def test_nothing_catches_every_exception() -> None:
    found = [handler for source in _sources(ours=False) for handler in _swallowing(*source)]
    assert not found, "\n".join(found)


def test_no_file_has_more_than_400_lines() -> None:
    scripts = [(path.name, path.read_text(encoding="utf-8")) for path in (ROOT / "web").rglob("*.js")]
    counted = [(len(text.splitlines()), path) for path, text in [*_sources(ours=False), *scripts]]
    assert not [(count, path) for count, path in counted if count > 400]


WATCHED_IMPORT = """
import importlib, importlib.util, logging, os, sys
import numpy, safetensors.torch, torch

def settings():
    handlers = list(logging.getLogger().handlers)
    return torch.get_num_threads(), torch.is_grad_enabled(), torch.initial_seed(), handlers, dict(os.environ)

def watch(event, details):
    writes = event == "open" and isinstance(details[2], int) and details[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event.split(".")[0] in ("socket", "subprocess", "shutil") or event in CHANGES:
        raise RuntimeError(f"importing {name} caused {event} {details}")

CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.system", "os.posix_spawn", "os.fork"}
root, *names = sys.argv[1:]
before, name = settings(), "lora_alloy"
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("lora_alloy", os.path.join(root, "__init__.py"))
sys.modules["lora_alloy"] = importlib.util.module_from_spec(spec)
sys.addaudithook(watch)
spec.loader.exec_module(sys.modules["lora_alloy"])
for name in names:
    importlib.import_module(name)
assert settings() == before, "an import changed a setting of torch, of logging or of the environment"
assert not torch.cuda.is_initialized()
"""


def test_importing_the_engine_touches_no_file_network_process_or_setting() -> None:
    paths = [path.removesuffix(".py").removesuffix("/__init__") for path, _ in _sources(ours=True)]
    wanted = [path for path in paths if path.split("/")[0] in {*ENGINE, "cli", "api"}]
    names = [f"lora_alloy.{path.replace('/', '.')}" for path in wanted]
    command = [sys.executable, "-c", WATCHED_IMPORT, str(ROOT), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
