"""Where a file's scale comes from: stored alphas, none, or words that loaders do not look at; and what is odd.

An alpha tensor gives alpha / rank. Without one the scale is 1, whatever the header says: that is what every
loader applies, so a merge does too unless it is told otherwise, and the difference is reported
(`spec/comfyui-contract.md` §3.2).
"""

from collections import Counter
from dataclasses import dataclass
from math import isfinite

from .file import NO_FACTORS, LoraFile
from .headers import cut, number, parsed
from .told import Told, groups, told_scales

SHOWN = 3

STRONG = 8.0  # a scale that nobody trains with but by rank-stabilised LoRA

_LIMITED = ("oft", "boft")  # their alpha limits a rotation and scales nothing; 0 is no limit


@dataclass(frozen=True)
class Alphas:
    """What a file says of the scale.

    Attributes:
        stored_count: modules with an alpha.
        missing_count: modules without one: their scale is 1.
        scales: alpha / rank → modules of that scale; empty if the alphas were not read.
        limit_count: modules whose alpha limits a rotation and scales nothing.
    """

    stored_count: int
    missing_count: int
    scales: dict[float, int]
    limit_count: int = 0


def find_alphas(file: LoraFile, *, read_values: bool) -> tuple[Alphas, list[str]]:
    """What a file says of its scale, and what is odd about it, in sentences."""
    stored = sum("alpha" in module.roles for module in file.modules.values())
    scales, problems = _scales(file) if read_values else ({}, [])
    told, unread = told_scales(file.modules, file.tensors, file.path)
    problems += [_told(one, names, file) for one, names in groups(told)][:SHOWN]
    problems += unread
    problems += _orphans(file)
    problems += _lacking(file, len(told))
    limits = sum("alpha" in module.roles and module.format in _LIMITED for module in file.modules.values())
    return Alphas(stored, len(file.modules) - stored, scales, limits), problems


def _scales(file: LoraFile) -> tuple[dict[float, int], list[str]]:
    scales: Counter[float] = Counter()
    zero, broken = [], []
    stored: list[tuple[float, int]] = []
    for name, module in file.modules.items():
        if "alpha" not in module.roles or module.format in _LIMITED:
            continue
        alpha = float(file.tensors.read(module.roles["alpha"].name))
        if not isfinite(alpha):
            broken.append(name)
            continue
        scales[float(f"{alpha / module.rank:.6g}")] += 1
        stored.append((alpha, module.rank))
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
    problems += _traps(file, stored)
    problems += _stabilised(file, stored)
    return dict(sorted(scales.items())), problems


def _traps(file: LoraFile, stored: list[tuple[float, int]]) -> list[str]:
    """Alphas that are one number where it should not be the same, or not be 1."""
    alphas, ranks = {alpha for alpha, _ in stored}, {rank for _, rank in stored}
    if len(alphas) != 1 or alphas == {0.0}:
        return []
    alpha, least, most = alphas.pop(), min(ranks), max(ranks)
    if least != most:
        return [
            f"Every alpha is {alpha:g}, and ranks go from {least} to {most}, so scales go from {alpha / least:g}"
            f" down to {alpha / most:g}. If its trainer meant one scale for all, the modules of low rank come"
            " out too strong in every loader."
        ]
    if alpha == 1.0 and most > 1 and number(file.tensors.metadata.get("ss_network_alpha")) != 1.0:
        return [
            f"Every alpha is 1 at rank {most}, a scale of 1/{most}, and the header does not say that it was"
            f" trained so. Some programs write 1 where a file had no alpha; if it looks too weak, give it"
            f" {most} times the strength."
        ]
    return []


def _stabilised(file: LoraFile, stored: list[tuple[float, int]]) -> list[str]:
    """Rank-stabilised LoRA: LyCORIS stores what loaders need, other writers alpha times √rank twice or never."""
    arguments = parsed(file.tensors.metadata.get("ss_network_args", ""))
    is_told = isinstance(arguments, dict) and str(arguments.get("rs_lora")).lower() == "true"
    if is_told and any(module.format == "glora" for module in file.modules.values()):
        return [
            "Its header says rank-stabilised (`rs_lora`), and for GLoRA the trainer stores the alpha as it was asked"
            " for: loaders divide it by the rank, where training divided it by the rank's square root."
        ]
    if is_told:
        return []
    strong = [(alpha, rank) for alpha, rank in stored if rank > 1 and alpha / rank > STRONG]
    if not strong:
        return []
    alpha, rank = max(strong, key=lambda one: one[0] / one[1])
    return [
        f"Alpha is far above the rank in {_of(len(strong), file)}, at most {alpha:g} at rank {rank}, a scale of"
        f" {alpha / rank:g}. Rank-stabilised training scales by alpha / √rank; a file that was converted twice looks"
        " like this. If it burns at strength 1, divide its strength by the root of the rank."
    ]


def _lacking(file: LoraFile, told_count: int) -> list[str]:
    """Alphas that are not there, where the program that wrote the file always writes them."""
    plain = [
        module for module in file.modules.values() if module.format == "lora" and module.parameter == "weight"
    ]
    without = [module for module in plain if "alpha" not in module.roles]
    if not without or told_count:
        return []
    first = cut(without[0].name)
    if len(without) < len(plain):
        return [
            f"{_of(len(without), file)} store no alpha, the first `{first}`, and the others do: loaders apply them at"
            " scale 1. Programs that write alphas write all of them, so part of the file may have been lost or"
            " merged in."
        ]
    rank = max(module.rank for module in plain)
    is_kohya = file.tensors.metadata.get("ss_network_module", "").startswith("networks.")
    if not (is_kohya and "lora_alloy.recipe" not in file.tensors.metadata) or rank == 1:
        return []
    return [
        f"Its header is that of kohya's trainer, which always stores alphas, and none is here: loaders apply scale 1."
        f" If the alphas were lost in a conversion, it is too strong by the rank over its alpha, up to {rank} times."
    ]


def _of(count: int, file: LoraFile) -> str:
    return f"{count} of {len(file.modules)} modules"


def _told(told: Told, names: list[str], file: LoraFile) -> str:
    """What only words know of the scale: no loader applies it, ComfyUI's included."""
    says = f"alpha {told.alpha:g} at rank {told.rank:g}, which is a scale of {told.scale:g}"
    if told.is_over_whole:
        return (
            f"{_of(len(names), file)} are LoKr with both matrices whole, where loaders leave alpha out;"
            f" {told.source} is {says}. If its trainer applied that, loaders render it {1 / told.scale:g} times"
            f" too strong: lower its strength to {told.scale:g}, or merge with `--honour-metadata`."
        )
    known = (
        f"{told.source} says {says}, but {_of(len(names), file)} store no alpha: loaders apply them at scale 1,"
        " and so does a merge."
    )
    if not told.fits:
        return f"{known} Their factors are of another rank, so these words may be of another file."
    return (
        f"{known} If the file looks too {'strong' if told.scale < 1 else 'weak'}, multiply its strength by"
        f" {told.scale:g}, or merge with `--honour-metadata`."
    )


def _orphans(file: LoraFile) -> list[str]:
    orphans = [one.tensor for one in file.accounts if one.reason == NO_FACTORS]
    if not orphans:
        return []
    what = "An alpha belongs" if len(orphans) == 1 else f"{len(orphans)} alphas belong"
    return [f"{what} to no factors, the first `{cut(orphans[0])}`: no effect in any loader."]
