"""A script: count again what each reader takes, and write the findings and `docs/compatibility.md`.

Run as `python -m lora_alloy_testing.write_compatibility`, with `tests/support` on `PYTHONPATH`. Readers that are not
installed keep what was counted last.
"""

import importlib.metadata
import importlib.util
import json
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    """Count, and write both files."""
    spec = importlib.util.spec_from_file_location("conftest", ROOT / "tests/conftest.py")
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    from . import compatibility, read_names_in_diffusers
    from .comfy_tree import find_trees
    from .compatibility_page import page
    from lora_alloy.lora.keys import FAMILIES

    kept = compatibility.stored() if compatibility.FINDINGS.exists() else None
    read = {compatibility.OURS: {one.key: compatibility.read_by_us(one)[0] for one in FAMILIES}}
    if kept:
        read |= {name: counts for name, counts in kept["read"].items() if name.startswith("ComfyUI")}
    found: compatibility.Findings = {
        "modules": compatibility.modules(),
        "read": read,
        "strayed": dict(kept["strayed"]) if kept else {},
        "formats": {compatibility.OURS: compatibility.formats_read_by_us()},
    }
    if kept:
        found["formats"] = kept["formats"] | found["formats"]
    for tree in find_trees():
        with tempfile.TemporaryDirectory() as folder:
            one = compatibility.read_by_comfyui(tree, Path(folder))
        name = f"ComfyUI {tree.version}"
        found["read"][name] = compatibility.counts_of(one["families"], 0)
        found["strayed"][name] = compatibility.counts_of(one["families"], 1)
        found["formats"][name] = one["formats"]
    if importlib.util.find_spec("diffusers"):
        name = f"diffusers {importlib.metadata.version('diffusers')}"
        found["read"][name] = read_names_in_diffusers.read(found["modules"])
    elif kept:
        found["read"] |= {name: counts for name, counts in kept["read"].items() if name not in read}
    compatibility.FINDINGS.write_text(
        json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (ROOT / "docs/compatibility.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
