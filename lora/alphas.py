"""Where a file's scale comes from: stored alphas, none, or a header that loaders do not look at.

An alpha tensor gives alpha / rank. Without one the scale is 1, whatever the header says: that is what every
loader applies, so a merge does too, and the difference is reported (`spec/comfyui-contract.md` §3.2).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from .file import LoraFile
from .headers import cut, number, parsed

_LIMITED = ("oft", "boft")  # their alpha limits a rotation and scales nothing; 0 is no limit


@dataclass(frozen=True)
class Alphas:
    """What a file says of the scale.

    Attributes:
        stored_count: modules with an alpha.
        missing_count: modules without one: their scale is 1.
        scales: alpha / rank → modules of that scale; empty if the alphas were not read.
    """

    stored_count: int
    missing_count: int
    scales: dict[float, int]


def find_alphas(file: LoraFile, *, read_values: bool) -> tuple[Alphas, list[str]]:
    """What a file says of its scale, and what is odd about it, in sentences."""
    stored = sum("alpha" in module.roles for module in file.modules.values())
    scales, problems = _scales(file) if read_values else ({}, [])
    problems += _header_alphas(file.tensors.metadata, file, stored)
    return Alphas(stored, len(file.modules) - stored, scales), problems


def _scales(file: LoraFile) -> tuple[dict[float, int], list[str]]:
    scales: Counter[float] = Counter()
    zero, broken = [], []
    for name, module in file.modules.items():
        if "alpha" not in module.roles or module.format in _LIMITED:
            continue
        alpha = float(file.tensors.read(module.roles["alpha"].name))
        if not isfinite(alpha):
            broken.append(name)
            continue
        scales[float(f"{alpha / module.rank:.6g}")] += 1
        if alpha == 0.0:
            zero.append(name)
    problems = []
    if zero:
        problems.append(
            f"Alpha is 0 in {_of(len(zero), file)}, the first `{cut(zero[0])}`: they have no effect in any"
            " loader. A stored 0 is almost always a mistake of the program that wrote the file."
        )
    if broken:
        problems.append(
            f"Alpha is not a finite number in {_of(len(broken), file)}, the first `{cut(broken[0])}`: the"
            " file is damaged. Get it again."
        )
    return dict(sorted(scales.items())), problems


def _of(count: int, file: LoraFile) -> str:
    return f"{count} of {len(file.modules)} modules"


def _header_alphas(metadata: Mapping[str, str], file: LoraFile, stored: int) -> list[str]:
    """Scales that only the header knows of: no loader applies them, ComfyUI's included."""
    if stored == len(file.modules):
        return []
    found = [
        f"{where} says alpha {alpha:g} at rank {rank:g}, which is a scale of {alpha / rank:g}"
        for where, alpha, rank in (*_adapter_alphas(metadata), *_kohya_alpha(metadata))
        if rank > 0 and alpha != rank
    ]
    if not found:
        return []
    return [
        f"{found[0]}, but {_of(len(file.modules) - stored, file)} store no alpha: loaders apply them at scale"
        " 1, and so does a merge. If the file looks too strong, lower its strength by that scale."
    ]


def _kohya_alpha(metadata: Mapping[str, str]) -> list[tuple[str, float, float]]:
    alpha, rank = (number(metadata.get(f"ss_network_{what}")) for what in ("alpha", "dim"))
    return [("`ss_network_alpha` in the header", alpha, rank)] if alpha is not None and rank else []


def _adapter_alphas(metadata: Mapping[str, str]) -> list[tuple[str, float, float]]:
    told = parsed(metadata.get("lora_adapter_metadata", ""))
    if not isinstance(told, dict):
        return []
    found = []
    for key, value in told.items():
        owner, _, name = key.rpartition(".")
        alpha, rank = number(value), number(told.get(f"{owner}.r" if owner else "r"))
        if name == "lora_alpha" and alpha is not None and rank:
            if told.get(f"{owner}.use_rslora" if owner else "use_rslora") is True:
                alpha *= rank**0.5
            found.append((f"`{cut(key)}` of `lora_adapter_metadata` in the header", alpha, rank))
    return found
