"""Load Tuner Data: a tuning result from a file, of this pack or another."""

from collections.abc import Mapping
from typing import Any

from ..autotuner.tuner_data import candidates_of, score_of
from ..autotuner.tuner_file import read_tuner_file
from ..autotuner.tuner_report import candidate_lines
from ..core.errors import FileError
from . import bridge
from .types import CATEGORY, TUNER_DATA

TOLD = (
    "source_loras",
    "architecture_preset",
    "normalize_keys",
    "auto_strength_floor",
    "decision_smoothing",
    "lora_hash",
)
NOTHING = "The file says nothing of itself."
SHOWN = 500


class LoadTunerData:
    """Reads a tuning result."""

    CATEGORY = CATEGORY
    DESCRIPTION = "Loads a tuning result, for Merge Selector and the optimizers."
    SEARCH_ALIASES = ("load tuner", "import tuning")
    FUNCTION = "load_tuner_data"
    RETURN_TYPES = (TUNER_DATA, "STRING", "STRING", "STRING")
    RETURN_NAMES = ("tuner_data", "prompt", "description", "metadata_info")
    OUTPUT_TOOLTIPS = (
        "The tuning result.",
        "The prompt that was saved with it.",
        "The description that was saved with it.",
        "What the file says of itself.",
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:  # noqa: N802
        tooltip = "A file out of a folder of tuning results."
        return {"required": {"tuner_data_file": (bridge.list_tuner_files(), {"tooltip": tooltip})}}

    @classmethod
    def VALIDATE_INPUTS(cls, tuner_data_file: str | None = None) -> str | bool:  # noqa: N802
        """A file whose folders are written as another system does is known, too."""
        if tuner_data_file is None or bridge.tuner_file(tuner_data_file) is not None:
            return True
        return _missing(tuner_data_file)

    @classmethod
    def IS_CHANGED(cls, tuner_data_file: str | None = None) -> object:  # noqa: N802
        """A file that was written again is another one."""
        path = None if tuner_data_file is None else bridge.tuner_file(tuner_data_file)
        if path is None:
            return float("nan")
        stat = path.stat()
        return f"{stat.st_mtime_ns} {stat.st_size}"

    def load_tuner_data(self, tuner_data_file: str) -> tuple[dict[str, Any], str, str, str]:
        """The result, and what was saved with it.

        Raises:
            FileError: there is no such file, or it is no tuning result.
        """
        path = bridge.tuner_file(str(tuner_data_file))
        if path is None:
            raise FileError(_missing(str(tuner_data_file)))
        data = read_tuner_file(path)
        texts = [data.get(name) for name in ("prompt", "description")]
        prompt, description = (text if isinstance(text, str) else "" for text in texts)
        return data, prompt, description, "\n".join(_lines(data, prompt, description)) or NOTHING


def _missing(name: str) -> str:
    return (
        f"There is no tuning result called {name!r:.200} in the folder `{bridge.TUNER_FOLDER}` of ComfyUI's models."
        " Put it there and refresh, or pick another one."
    )


def _lines(data: Mapping[str, Any], prompt: str, description: str) -> list[str]:
    lines = [f"{name}: {_value(data[name])}" for name in TOLD if name in data]
    ranked = candidates_of(data)
    lines.append(f"configs: {len(ranked)}")
    if ranked and isinstance(ranked[0], Mapping):
        score = score_of(ranked[0])
        lines += [] if score is None else [f"best score: {score:.4f}"]
        config = ranked[0].get("config")
        for name, value in config.items() if isinstance(config, Mapping) else ():
            lines.append(f"best {str(name)[:60]}: {_value(value)}")
        lines += candidate_lines(ranked[0], 1)
    lines += [f"prompt: {prompt}"] if prompt else []
    return lines + ([f"description: {description}"] if description else [])


def _value(value: object) -> str:
    if isinstance(value, list) and all(isinstance(one, Mapping) and "name" in one for one in value):
        return ", ".join(f"{str(one['name'])[:200]} @ {one.get('strength', '?')!s:.20}" for one in value)
    return str(value)[:SHOWN]
