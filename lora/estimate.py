"""What a merge of files will take, from their headers: an estimate, to know minutes from hours.

A linear merge joins factors, so its result is as large as they are together, and work and memory follow the result.
The constants were measured on two CPU cores over SDXL-sized stacks of one to four LoRAs of ranks 16 to 128 and on the
demo; `tests/lora/test_estimate.py` holds the memory to a factor of two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .file import LoraFile
from .formats import Module
from .leading import target_of

START_BYTES = 320_000_000  # Python with PyTorch
HELD = 1.35  # what is in memory at the end, a written copy of some of it included, over the result
START_SECONDS = 2.0
SECONDS_PER_BYTE = 17e-9
SECONDS_PER_DENSE = 25e-9  # per value of a delta that is multiplied out
_ITEM_BYTES = {"F64": 4, "F32": 4}
_WHOLE = ("LoKr", "diff", "replaced weight")


@dataclass(frozen=True)
class Estimate:
    """What a merge of some files will take, at its own rank.

    Attributes:
        target_count: targets of the result.
        result_bytes: of the merged file.
        peak_bytes: of memory, the whole process.
        seconds: of one CPU core, from process start to the proven file.
    """

    target_count: int
    result_bytes: int
    peak_bytes: int
    seconds: float

    def text(self) -> str:
        """It in a sentence; the numbers are rounded, as they are not better known."""
        return (
            f"A merge takes about {_time(self.seconds)} of a CPU core and {_size(self.peak_bytes)} of memory, for a"
            f" result of about {_size(self.result_bytes)} on {self.target_count:,} targets (an estimate from headers)."
        )


def estimate_merge(files: Sequence[LoraFile]) -> Estimate:
    """What a merge of files will take, without reading a value. They may be of several families."""
    by_target: dict[str, list[Module]] = {}
    for file in files:
        family = file.families[0] if file.families else None
        for module in file.modules.values():
            name = f"{target_of(module.name, family)}.{module.parameter}"
            by_target.setdefault(name, []).append(module)
    item = max((_ITEM_BYTES.get(one.dtype, 2) for ones in by_target.values() for one in ones), default=2)
    stored, dense, largest = 0, 0, 0
    for modules in by_target.values():
        rows, columns = _sides(modules)
        rank = sum(module.rank for module in modules)
        if len(modules) == 1 and modules[0].format == "LoKr" and not modules[0].base_reason:
            stored += sum(prod(info.shape) for info in modules[0].roles.values())
        elif any(module.base_reason or module.format in _WHOLE for module in modules):
            stored += rows * columns
            dense += rows * columns * len(modules)
            largest = max(largest, rows * columns * (len(modules) + 2))
        else:
            stored += min(rank, rows, columns) * (rows + columns)
            largest = max(largest, 3 * rank * (rows + columns))
    result = stored * item
    peak = START_BYTES + int(HELD * result) + 4 * largest
    seconds = START_SECONDS + SECONDS_PER_BYTE * stored * 2 + SECONDS_PER_DENSE * dense
    return Estimate(len(by_target), result, peak, seconds)


def _sides(modules: Sequence[Module]) -> tuple[int, int]:
    shapes = [module.shape or (module.outputs, module.inputs) for module in modules]
    return max(shape[0] for shape in shapes), max(prod(shape[1:]) for shape in shapes)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _size(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
