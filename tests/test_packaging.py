"""What pyproject.toml, constraints.txt and the launcher say about this package agrees with what is there."""

import ast
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
requirements = pytest.importorskip("packaging.requirements")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def launcher_groups() -> dict[str, dict[str, str]]:
    tree = ast.parse((ROOT / "alloy.py").read_text(encoding="utf-8"))
    assigned = {
        ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)
    }
    return ast.literal_eval(assigned["GROUPS"])


def test_the_list_of_packages_is_the_tree(project):
    not_ours = {"tests", "benchmarks", "docs", "build", "dist", "node_modules"}
    tops = [top for top in ROOT.iterdir() if top.is_dir() and top.name[0] != "." and top.name not in not_ours]
    folders = [init.parent for top in tops for init in top.rglob("__init__.py")] + [ROOT / "web"]
    found = {".".join(["lora_alloy", *folder.relative_to(ROOT).parts]) for folder in folders}
    assert set(project["tool"]["setuptools"]["packages"]) == {"lora_alloy", *found}


def test_the_version_is_a_literal_that_setuptools_and_the_changelog_know(project):
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "lora_alloy.__version__"}
    found = re.search(r'^__version__ = "(\d+\.\d+\.\d+)"$', (ROOT / "__init__.py").read_text(), re.MULTILINE)
    assert found
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest and newest[1] == found[1]


def test_comfyui_finds_its_metadata_and_no_second_web_folder(project):
    comfy = project["tool"]["comfy"]
    assert {"PublisherId", "DisplayName", "requires-comfyui"} <= set(comfy)
    assert "web" not in comfy


def test_the_launcher_installs_what_pyproject_asks_for(project, launcher_groups):
    listed = {"run": project["project"]["dependencies"], **project["project"]["optional-dependencies"]}
    parsed = {group: [requirements.Requirement(line) for line in lines] for group, lines in listed.items()}
    asked = {group: {one.name: str(one.specifier) for one in several} for group, several in parsed.items()}
    expected = {
        group: {name: f">={least}" for name, least in needs.items()}
        for group, needs in launcher_groups.items()
    }
    assert asked == expected


@pytest.mark.parametrize("python", PYTHONS)
def test_every_dependency_has_one_tested_version_that_is_allowed(python, launcher_groups):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [requirements.Requirement(line) for line in lines if line and not line.startswith("#")]
    here = {"python_version": python}
    valid = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(here)]
    versions = {pin.name: str(pin.specifier).removeprefix("==") for pin in valid}
    assert len(versions) == len(valid)
    for needs in launcher_groups.values():
        for name, least in needs.items():
            assert requirements.Requirement(f"{name}>={least}").specifier.contains(versions[name]), name


def test_old_pythons_can_read_the_launcher_far_enough_to_be_told():
    tree = ast.parse((ROOT / "alloy.py").read_text(encoding="utf-8"), feature_version=(3, 6))
    docstring, first, guard = tree.body[:3]
    assert isinstance(docstring, ast.Expr)
    assert ast.unparse(first) == "import sys"
    assert isinstance(guard, ast.If) and ast.unparse(guard.test) == "sys.version_info < (3, 10)"


def test_the_readme_starts_with_the_two_commands():
    blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert [line.split("#")[0].strip() for line in blocks[0].splitlines()] == [
        "python alloy.py demo",
        "python alloy.py test",
    ]


def test_type_checkers_see_the_functions_that_are_looked_up_lazily():
    stub = ast.parse((ROOT / "__init__.pyi").read_text(encoding="utf-8"))
    shown = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    real = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    lazy = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in real.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("_API", "_PROVING", "_TUNING")
    }
    assert tuple(shown) == (*lazy["_API"], *lazy["_PROVING"], *lazy["_TUNING"])


def test_the_wheel_holds_every_package_the_scripts_and_the_licence(project, tmp_path):
    there = all(importlib.util.find_spec(name) for name in ("pip", "setuptools"))
    if not there or int(importlib.metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("building a wheel needs pip, and setuptools 77 or newer, in this Python")
    source = tmp_path / "a-renamed-checkout"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    )
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(tmp_path)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    shown = [path.relative_to(ROOT) for path in (ROOT / "web").rglob("*") if path.suffix in (".js", ".md")]
    assert {f"lora_alloy/{path.as_posix()}" for path in shown} <= names
    assert {"lora_alloy/py.typed", "lora_alloy/__init__.pyi"} <= names
    for package in project["tool"]["setuptools"]["packages"]:
        assert any(name.startswith(package.replace(".", "/") + "/") for name in names), package
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if "tests" in name.split("/")]
