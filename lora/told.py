"""Scales that only words tell: PEFT's settings in a header or beside the file, kohya's `ss_network_alpha`.

No loader applies them, ComfyUI's included, so a merge does not either unless it is asked to honour them; the
inspection says what that would change (`spec/comfyui-contract.md` §3.2). A stored alpha is never outdone: what
LyCORIS writes for rank-stabilised LoRA is converted already.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

from ..core.tensorfile import TensorFile
from . import keys
from .formats import Module
from .headers import JSON_LIMIT, cut, number, parsed

CONFIG = "adapter_config.json"
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".ckpt"}
_SCALED = ("lora", "LoHa", "LoKr")
_PEFT = "base_model.model."
_MODELS = ("unet", "transformer")  # diffusers' components that are the model
_EXPRESSION = set("*+?()|[]{}\\^$")


@dataclass(frozen=True)
class Told:
    """A scale for one module, out of words.

    Attributes:
        source: where it stands.
        alpha: as it stands there.
        rank: as it stands there.
        scale: what they make: alpha / rank, or alpha / √rank for rank-stabilised LoRA.
        fits: whether the module's factors have that rank; words of another rank are of another file.
        is_over_whole: the module is a LoKr of two whole matrices, whose alpha loaders leave out.
    """

    source: str
    alpha: float
    rank: float
    scale: float
    fits: bool
    is_over_whole: bool = False


def told_scales(
    modules: Mapping[str, Module], tensors: TensorFile, path: Path | None
) -> tuple[dict[str, Told], list[str]]:
    """By module key, the scale that words tell and that is not 1; and which words are not understood.

    Args:
        modules: of one file.
        tensors: that file.
        path: where it lies, to look beside it; None for tensors in memory.
    """
    settings, problems = _settings(tensors.metadata, path, modules)
    found: dict[str, Told] = {}
    for key, module in modules.items():
        if module.format not in _SCALED or "alpha" in module.roles:
            continue
        told = _over_whole(module, tensors) if _is_whole(module) else None
        told = told or next((told for one in settings if (told := one.tell(module))), None)
        told = told or _kohya(module, tensors.metadata)
        if told is not None and told.scale != 1.0 and isfinite(told.scale) and told.scale > 0:
            found[key] = told
    for key, module in modules.items():
        # The bias of an up has no rank of its own; it goes with its factors.
        if module.format == "lora" and module.parameter == "bias":
            found.pop(key, None)
            if module.name in found:
                found[key] = found[module.name]
    return found, problems


@dataclass(frozen=True)
class _Settings:
    """PEFT's settings of one component; the patterns are module names → numbers, the first that fits counts.

    `is_renamed`: they are of the model, and the file was converted since to names that do not begin with it.
    """

    source: str
    component: str
    values: Mapping[str, Any]
    ranks: Mapping[str, tuple[int, float]]
    alphas: Mapping[str, tuple[int, float]]
    is_renamed: bool = False

    def tell(self, module: Module) -> Told | None:
        """The scale of one module, None if it is of another component or the settings do not say."""
        name = module.name.removeprefix(_PEFT)
        if self.is_renamed:
            if keys.is_text(name):
                return None
        elif self.component and not name.startswith(f"{self.component}."):
            return None
        name = name.removeprefix(f"{self.component}.")
        rank = _matched(self.ranks, name)
        alpha = _matched(self.alphas, name)
        rank = number(self.values.get("r")) if rank is None else rank
        if alpha is None:
            alpha = number(self.values.get("lora_alpha", self.values.get("alpha")))
        if alpha is None or rank is None or rank <= 0:
            return None
        divisor = rank**0.5 if self.values.get("use_rslora") is True else rank
        fits = rank == module.rank or _is_whole(module) or module.parameter == "bias"
        return Told(self.source, alpha, rank, alpha / divisor, fits)


def _settings(
    metadata: Mapping[str, str], path: Path | None, modules: Mapping[str, Module]
) -> tuple[list[_Settings], list[str]]:
    """Settings of every component, those in the header first; and what of them is not understood."""
    by_owner: dict[tuple[str, str], dict[str, Any]] = {}
    header = parsed(metadata.get("lora_adapter_metadata", ""))
    for key, value in header.items() if isinstance(header, dict) else ():
        owner, _, name = key.rpartition(".")
        where = f"`{cut(f'{owner}.lora_alpha' if owner else 'lora_alpha')}` of `lora_adapter_metadata` in the header"
        by_owner.setdefault((where, owner), {})[name] = value
    beside = _config(path)
    if beside is not None:
        by_owner[f"`{CONFIG}` beside the file", ""] = beside
    made, problems = [], []
    for (source, owner), values in by_owner.items():
        patterns = [_plain(values.get(f"{name}_pattern")) for name in ("rank", "alpha")]
        if None in patterns:
            problems.append(
                f"{source} goes with patterns that are regular expressions; they are not read, and neither is"
                " the scale that they tell."
            )
            continue
        is_renamed = owner in _MODELS and not any(
            module.name.removeprefix(_PEFT).startswith(f"{owner}.") for module in modules.values()
        )
        if is_renamed and any(patterns):
            problems.append(
                f"{source} goes with patterns of module names, and the file was converted to others since; they are"
                " not read, and neither is the scale that they tell."
            )
            continue
        made.append(_Settings(source, owner, values, patterns[0] or {}, patterns[1] or {}, is_renamed))
    return made, problems


def _config(path: Path | None) -> dict[str, Any] | None:
    """PEFT's own settings, if they lie beside the file and no other file may be meant."""
    if path is None:
        return None
    place = path.parent / CONFIG
    try:
        if not place.is_file() or place.stat().st_size > JSON_LIMIT:
            return None
        others = [
            one for one in path.parent.iterdir() if one.suffix.lower() in _WEIGHTS and one.name != path.name
        ]
        if others and not path.name.startswith("adapter_model"):
            return None
        told = parsed(place.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return told if isinstance(told, dict) else None


def _plain(patterns: object) -> dict[str, tuple[int, float]] | None:
    """Pattern → its place and number; None if one is a regular expression and not just a name.

    A stranger's expression may take forever, so none is ever run.
    """
    found: dict[str, tuple[int, float]] = {}
    for place, (key, value) in enumerate(patterns.items() if isinstance(patterns, dict) else ()):
        name = key.removeprefix("^").removesuffix("$").replace("\\.", ".")
        told = number(value)
        if told is None or set(name) & _EXPRESSION:
            return None
        found.setdefault(f"^{name}" if key.startswith("^") else name, (place, told))
    return found


def _matched(patterns: Mapping[str, tuple[int, float]], name: str) -> float | None:
    """The number of the first pattern that is the name or the end of it, after a dot."""
    if not patterns:
        return None
    steps = name.split(".")
    ends = [f"^{name}", *(".".join(steps[start:]) for start in range(len(steps)))]
    fitting = [patterns[end] for end in ends if end in patterns]
    return min(fitting)[1] if fitting else None


def _is_whole(module: Module) -> bool:
    return "lokr_w1" in module.roles and "lokr_w2" in module.roles


def _over_whole(module: Module, tensors: TensorFile) -> Told | None:
    """What the alpha of a LoKr of two whole matrices makes with the header's rank, if that is below 1.

    LyCORIS stores alpha = rank there, other trainers 1 with a rank in mind, and some a huge number that nobody
    means.
    """
    rank = number(tensors.metadata.get("ss_network_dim"))
    info = tensors.infos.get(f"{module.name}.alpha")
    if not rank or info is None or prod(info.shape) != 1:
        return None
    alpha = float(tensors.read(info.name))
    source = "its alpha with `ss_network_dim` in the header"
    return Told(source, alpha, rank, alpha / rank, True, True) if 0 < alpha < rank else None


def _kohya(module: Module, metadata: Mapping[str, str]) -> Told | None:
    """What kohya's header tells of a linear map, and through its arguments of a convolution."""
    alpha, rank = (number(metadata.get(f"ss_network_{what}")) for what in ("alpha", "dim"))
    source = "`ss_network_alpha` in the header"
    if len(module.shape or ()) > 2:
        told = parsed(metadata.get("ss_network_args", ""))
        told = told if isinstance(told, dict) else {}
        if (size := number(told.get("conv_dim"))) is not None:
            alpha, rank, source = number(told.get("conv_alpha")), size, "`conv_alpha` of `ss_network_args`"
    if alpha is None or not rank or rank <= 0 or _is_whole(module) or module.parameter == "bias":
        return None
    return Told(source, alpha, rank, alpha / rank, rank == module.rank)


def groups(found: Mapping[str, Told]) -> Iterator[tuple[Told, list[str]]]:
    """The modules of each scale, the most frequent first."""
    alike: dict[Told, list[str]] = {}
    for key, told in found.items():
        alike.setdefault(told, []).append(key)
    yield from sorted(alike.items(), key=lambda pair: -len(pair[1]))
