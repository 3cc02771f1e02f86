"""Save Tuner Data: a tuning result as a file."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from ..autotuner.tuner_file import read_tuner_file, write_tuner_file
from ..core.errors import FileError, SaveError
from ..core.log import log
from ..core.text import whole
from . import bridge
from .types import CATEGORY, TUNER_DATA


class SaveTunerData:
    """Writes a tuning result into a folder of such results."""

    CATEGORY = CATEGORY
    DESCRIPTION = "Saves a tuning result, so that Load Tuner Data can give it to any node that follows one."
    SEARCH_ALIASES = ("save tuner", "export tuning")
    FUNCTION = "save_tuner_data"
    OUTPUT_NODE = True
    RETURN_TYPES = ("STRING",)
    RETURN_NAMES = ("file_path",)
    OUTPUT_TOOLTIPS = ("The file that was written; empty if there was nothing to save.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        multiline = {"default": "", "multiline": True}
        return {
            "required": {
                "tuner_data": (TUNER_DATA, {"tooltip": "From LoRA AutoTuner."}),
                "save_folder": (bridge.tuner_folders(), {"tooltip": "Which folder of tuning results."}),
                "filename": (
                    "STRING",
                    {"default": "tuner_data", "tooltip": "The name, with sub-folders if you like."},
                ),
                "overwrite": (
                    "BOOLEAN",
                    {"default": True, "tooltip": "Replace a tuning result of this name, or add a number."},
                ),
            },
            "optional": {
                "prompt": ("STRING", {**multiline, "tooltip": "Kept in the file."}),
                "description": ("STRING", {**multiline, "tooltip": "Kept in the file."}),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(cls, save_folder: str | None = None) -> bool:  # noqa: N802
        """A folder of another machine gives way to the first one here."""
        return True

    def save_tuner_data(
        self,
        tuner_data: object,
        save_folder: str = "",
        filename: str = "tuner_data",
        overwrite: bool = True,
        prompt: str = "",
        description: str = "",
    ) -> dict[str, Any]:
        """Write the file; `{"ui": …, "result": (path,)}`.

        Raises:
            SaveError: the place cannot be written, or what is connected is no tuning result.
        """
        if tuner_data is None:
            return _result("", "Nothing was tuned, so nothing was saved.")
        if not isinstance(tuner_data, Mapping):
            raise SaveError(
                f"`tuner_data` is a {type(tuner_data).__name__}; connect `tuner_data` of LoRA AutoTuner."
            )
        path = bridge.tuner_path(save_folder, filename)
        if not overwrite:
            path = _free(path)
        _refuse_foreign(path)
        write_tuner_file(path, tuner_data, {"prompt": prompt, "description": description})
        told = f"Saved the tuning result to {path}."
        log.info("%s", told)
        return _result(str(path), told)


def _refuse_foreign(path: Path) -> None:
    """An earlier tuning result may be replaced; any other file may not."""
    if not path.exists():
        return
    try:
        read_tuner_file(path)
    except FileError:
        raise SaveError(
            f"`{path}` exists and is no tuning result; choose another name, or move it away."
        ) from None


def _free(path: Path) -> Path:
    """The path itself, or the first one with a number that is not taken."""
    if not path.exists():
        return path
    names = (path.with_name(f"{path.stem}_{number:03d}{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())


def _result(path: str, told: str) -> dict[str, Any]:
    return {"ui": {"text": [whole(told)]}, "result": (path,)}
