"""Run a function of our side-effect-free scripts in Node.js: they import nothing of ComfyUI's."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

__all__ = ["call", "needs_node"]

LIBRARY = Path(__file__).resolve().parents[3] / "web" / "lib"
NODE = shutil.which("node")

needs_node = pytest.mark.skipif(NODE is None, reason="Node.js is not installed: our scripts are not tested")


def call(tmp_path: Path, module: str, expression: str, given: object) -> Any:
    """The value of a JavaScript expression, as JSON, in which `m` is the module and `given` is `given`."""
    for script in LIBRARY.glob("*.js"):
        (tmp_path / script.name).write_bytes(script.read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    code = (
        f'import * as m from "./{module}"; import {{ readFileSync }} from "node:fs";'
        'const given = JSON.parse(readFileSync(0, "utf8"));'
        f"console.log(JSON.stringify(await ({expression})));"
    )
    (tmp_path / "run.js").write_text(code, encoding="utf-8")
    assert NODE is not None
    done = subprocess.run(
        [NODE, "run.js"], cwd=tmp_path, input=json.dumps(given).encode(), capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)
