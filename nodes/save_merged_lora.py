"""Save Merged LoRA: the merge as a LoRA file for any loader at strength 1, proven before it is there."""

from collections.abc import Mapping
from math import inf
from typing import Any

from ..api import Merged
from ..core.errors import FileError, SaveError
from ..core.log import log
from ..core.tensorfile import open_tensors
from ..core.text import whole
from ..merging.metadata import is_ours
from . import bridge
from .optimizing import MERGED
from .types import CATEGORY, LORA_DATA


class SaveMergedLoRA:
    """Writes a merge into a LoRA folder."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "Saves a merge as one LoRA file, reads it back, and compares it with what was applied, before it"
        " takes its place. At strength 1.0 in any LoRA loader it does what the optimizer showed."
    )
    SEARCH_ALIASES = ("save lora", "export lora")
    FUNCTION = "save_lora"
    OUTPUT_NODE = True
    RETURN_TYPES = ("STRING",)
    RETURN_NAMES = ("file_path",)
    OUTPUT_TOOLTIPS = ("The file that was written; empty if there was nothing to save.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        return {
            "required": {
                "lora_data": (LORA_DATA, {"tooltip": "The merge, from an optimizer."}),
                "save_folder": (bridge.lora_folders(), {"tooltip": "Which of ComfyUI's LoRA folders."}),
                "filename": (
                    "STRING",
                    {
                        "default": "merged_lora",
                        "tooltip": "The name, with sub-folders if you like. An earlier merge of this name is"
                        " replaced; any other file is not.",
                    },
                ),
            },
            "optional": {
                "save_rank": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2048,
                        "step": 4,
                        "tooltip": "At most this rank per weight; the error is stated. 0: exact.",
                    },
                ),
                "bake_strength": (
                    "BOOLEAN",
                    {
                        "default": True,
                        "tooltip": "Put the output strength into the file, so that 1.0 shows the same.",
                    },
                ),
                "prompt": (
                    "STRING",
                    {"default": "", "multiline": True, "tooltip": "Kept in the file's header."},
                ),
                "description": (
                    "STRING",
                    {"default": "", "multiline": True, "tooltip": "Kept in the file's header."},
                ),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(cls, save_folder: str | None = None) -> bool:  # noqa: N802
        """A folder of another machine gives way to the first one here."""
        return True

    def save_lora(
        self,
        lora_data: Mapping[str, Any] | None,
        save_folder: str = "",
        filename: str = "merged_lora",
        save_rank: int = 0,
        bake_strength: bool = True,
        prompt: str = "",
        description: str = "",
    ) -> dict[str, Any]:
        """Write and prove the file; `{"ui": …, "result": (path,)}`."""
        if lora_data is None:
            return _result("", "Nothing was merged, so nothing was saved.")
        merged = lora_data.get(MERGED) if isinstance(lora_data, Mapping) else None
        if not isinstance(merged, Merged):
            raise SaveError("`lora_data` is not of this pack; connect the output of its LoRA Optimizer.")
        path = bridge.save_path(save_folder, filename)
        _refuse_foreign(path, merged)
        gains = (lora_data["output_strength"], lora_data["clip_strength"]) if bake_strength else (1.0, 1.0)
        notes = {"prompt": prompt.strip(), "description": description.strip()}
        notes |= _settings(lora_data, is_baked=bake_strength)
        proof = merged.save(
            path,
            gain=gains[0],
            clip_gain=gains[1],
            rank=save_rank,
            max_loss=inf,  # what was shown is what is saved; the report told what is gone of it
            notes={name: text for name, text in notes.items() if text},
            progress=bridge.progress_bar(3),
        )
        told = (
            f"Read back, the largest difference to the merge is {proof.read_error:.1e}; rounding and rank cost at"
            f" most {proof.merge_error:.1e}. Saved {proof.target_count} targets, {proof.size_bytes / 1e6:.1f} MB, to"
            f" {proof.path}."
        )
        log.info("%s", told)
        return _result(str(proof.path), told)


def _settings(lora_data: Mapping[str, Any], *, is_baked: bool) -> dict[str, str]:
    """How it was merged, under the names that readers of other packs' files know."""
    told = {
        f"merge_{name}": str(value)
        for name, value in lora_data["merge_metadata"].items()
        if isinstance(value, str | float) and not name.startswith("bake_")
    }
    strengths = {f"merge_{name}": f"{lora_data[name]:g}" for name in ("output_strength", "clip_strength")}
    return {**told, **strengths, "merge_bake_strength": str(is_baked)}


def _refuse_foreign(path: Any, merged: Merged) -> None:
    """An earlier merge may be replaced; a file that somebody trained may not."""
    if not path.exists():
        return
    sources = {entry.file.path.resolve() for entry in merged.stack.entries if entry.file.path is not None}
    if path.resolve() in sources:
        raise SaveError(f"`{path}` is one of the LoRAs that were merged; choose another name.")
    try:
        ours = is_ours(open_tensors(path).metadata)
    except FileError:
        ours = False
    if not ours:
        raise SaveError(f"`{path}` exists and is not an earlier merge; choose another name, or move it away.")


def _result(path: str, told: str) -> dict[str, Any]:
    return {"ui": {"text": [whole(told)]}, "result": (path,)}
