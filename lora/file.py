"""One LoRA file: its modules, and an account of every tensor in it."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from ..core.errors import FileError
from ..core.hashing import file_sha256, tensors_sha256
from ..core.tensorfile import TensorFile, TensorInfo, open_tensors, tensors_in_memory
from ..core.text import whole
from . import keys
from .factors import Delta
from .formats import FORMATS, Format, Module, Problem, ia3, lora, others
from .headers import brief
from .packed import unpacked
from .told import Told, told_scales

SHOWN = 4
NO_FACTORS = "an alpha without factors: no effect"
_STRAY = {
    "alpha": NO_FACTORS,
    "scalar": "a scalar without factors: no effect",
    "rescale": "OFT's rescaling, which ComfyUI loads and does not apply",
    "dora": "DoRA magnitudes without factors: no effect",
    "magnitude": "DoRA magnitudes without factors: no effect",
    "scaled": "a mark of OFT without its rotations: no effect",
    "bm": "GLoRA's Tucker core without its factors: no effect",
}
_BFL_NORM = (".query_norm.scale", ".key_norm.scale")
_FIRST_LAYER = ("img_in", "diffusion_model.img_in")
TWICE = " twice, as "
_UNUSED = "belongs to no factors beside it: no effect"


@dataclass(frozen=True)
class Account:
    """What became of one tensor: used, skipped with a reason, or unknown."""

    tensor: str
    state: Literal["used", "skipped", "unknown"]
    reason: str = ""


class LoraFile:
    """A LoRA file, opened by its header; values are read when a module is loaded.

    Attributes:
        label: what messages and reports call it.
        path: where it lies; None for tensors in memory.
        tensors: the open file; packed factors are read as what they stand for.
        scales: by the name of a packed factor's scale, the factor.
        modules: key → module, in the file's order; the key is the name in the file, with `.bias` for biases.
        unread: modules that are recognised but not read, with the reason.
        accounts: one for every tensor of the file.
        families: the model families its names and shapes may belong to, the likeliest first.
        told: the scales of modules that come from words in its header or beside it; empty unless they are
            honoured.
    """

    def __init__(
        self,
        label: str,
        path: Path | None,
        tensors: TensorFile,
        content_hash: Callable[[Path], str] = file_sha256,
    ) -> None:
        self.label = label = whole(label)
        self.path = path
        self._stored = tensors
        self.tensors, self.scales = unpacked(tensors)
        self._content_hash = content_hash
        grouped, rest = _grouped(self.tensors.infos)
        self.modules, self.unread, self.accounts = _recognised(label, self.tensors, grouped, rest)
        self.accounts += _scale_accounts(self.scales, self.accounts)
        # What changes a bias alone shows its module's name, and its outputs.
        ordered = sorted(self.modules.values(), key=lambda module: module.parameter == "weight")
        self.families = keys.candidates({module.name: module.widths for module in ordered})
        self.told: Mapping[str, Told] = MappingProxyType({})

    @cached_property
    def sha256(self) -> str:
        """The content's hash: of the file, or of the tensors in memory."""
        if self.path is not None:
            return self._content_hash(self.path)
        return tensors_sha256({name: self._stored.read(name) for name in self._stored.infos})

    def hash_by(self, content_hash: Callable[[Path], str]) -> None:
        """Take the hash of the file's content from `content_hash`, unless it is known or nothing is on the disk."""
        self._content_hash = content_hash

    def without(self, names: Collection[str]) -> "LoraFile":
        """The same file, its content's hash included, as if some modules were not in it."""
        narrowed = copy(self)
        kept = {name: module for name, module in self.modules.items() if name not in names}
        narrowed.modules = MappingProxyType(kept)
        return narrowed

    def honouring(self) -> "LoraFile":
        """This file with the scales that its header, or the settings beside it, tell where it stores no alpha.

        Loaders do not apply them, so no file does unless it is asked to.
        """
        told, _ = told_scales(self.modules, self.tensors, self.path)
        made = copy(self)
        made.told = MappingProxyType({key: one for key, one in told.items() if one.fits})
        made.modules = MappingProxyType(
            {
                key: replace(module, gain=made.told[key].scale) if key in made.told else module
                for key, module in self.modules.items()
            }
        )
        return made

    def load(self, module: Module, base: Tensor | None = None) -> Delta:
        """The delta of one module.

        Args:
            module: of this file.
            base: the base weight, `(o, *rest)` float32, for a module whose effect depends on it.

        Raises:
            FileError: the tensors cannot be read.
        """
        return _format(module.format).load(module, self.tensors, base)


def open_lora(path: Path | str) -> LoraFile:
    """Open a LoRA file by its header alone.

    Raises:
        FileError: the file is missing, damaged, or not a LoRA.
    """
    path = Path(path)
    return LoraFile(path.name, path, open_tensors(path))


def lora_in_memory(label: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> LoraFile:
    """A LoRA whose tensors are loaded already, as some nodes hand it over.

    Raises:
        FileError: the tensors are damaged, or not a LoRA.
    """
    return LoraFile(label, None, tensors_in_memory(Path(label), tensors, metadata))


def _format(name: str) -> Format:
    return next(one for one in FORMATS if name == one.NAME)


@lru_cache(maxsize=20_000)
def _split(tensor_name: str) -> tuple[str, str] | None:
    """The module and the role of a tensor; kept, since the files of one trainer share their names."""
    return next((found for one in FORMATS if (found := one.split(tensor_name))), None)


def _grouped(infos: Mapping[str, TensorInfo]) -> tuple[dict[str, dict[str, TensorInfo]], list[str]]:
    grouped: dict[str, dict[str, TensorInfo]] = {}
    rest: list[str] = []
    for name, info in infos.items():
        if (found := _split(name)) is None:
            rest.append(name)
            continue
        module, role = found
        roles = grouped.setdefault(module, {})
        if role in roles:
            # The same factor in two spellings under one name: which one is meant cannot be told.
            role = f"{role}{TWICE}`{roles[role].name}` and as `{name}`"
        roles[role] = info
    for name in [name for name in rest if name.endswith(ia3.COMPANION)]:
        roles = grouped.get(name.removesuffix(ia3.COMPANION), {})
        if "on_input" in roles:
            roles["weight"] = infos[name]
            rest.remove(name)
    _add_bfl_norms(grouped, rest, infos)
    return grouped, rest


def _add_bfl_norms(
    grouped: dict[str, dict[str, TensorInfo]], rest: list[str], infos: Mapping[str, TensorInfo]
) -> None:
    """Whole norms in a control LoRA of Black Forest Labs replace the model's (`spec/comfyui-contract.md` §2.3)."""
    if _entrance(grouped) is None:
        return
    for name in [name for name in rest if name.endswith(_BFL_NORM)]:
        module = name.removesuffix(".scale")
        if not grouped.setdefault(module, {}):
            grouped[module]["set"] = infos[name]
            rest.remove(name)


def _entrance(grouped: Mapping[str, Mapping[str, TensorInfo]]) -> str | None:
    """The first layer of Flux by its native name, if the file changes it as a LoRA."""
    return next((name for name in _FIRST_LAYER if {"up", "down"} <= grouped.get(name, {}).keys()), None)


def _widened(modules: dict[str, Module], grouped: Mapping[str, Mapping[str, TensorInfo]]) -> None:
    """A control LoRA of Black Forest Labs widens the first layer by the channels of its picture."""
    name = _entrance(grouped)
    if name in modules and any(
        f"{one}.scale".endswith(_BFL_NORM) for one in grouped if "set" in grouped[one]
    ):
        modules[name] = replace(modules[name], is_wider=True, note=lora.WIDER)


def _recognised(
    label: str, tensors: TensorFile, grouped: Mapping[str, dict[str, TensorInfo]], rest: list[str]
) -> tuple[Mapping[str, Module], tuple[Problem, ...], tuple[Account, ...]]:
    modules: dict[str, Module] = {}
    unread: list[Problem] = []
    damage: list[Problem] = []
    accounts: list[Account] = []
    foreign = {name: known for name in rest if (known := others.known_as(name))}
    foreign_modules = {module: what for module, what in foreign.values()}
    for name, roles in grouped.items():
        twice = next((role for role in roles if TWICE in role), None)
        if twice:
            what = f"has its {twice}, and which of them is meant cannot be told"
            damage.append(Problem(name, what, is_damage=True))
            continue
        if not name:
            first = next(iter(roles.values())).name
            damage.append(Problem(first, "is of a module without a name", is_damage=True))
            continue
        if (what := foreign_modules.get(name)) and not others.is_harmless(what):
            # Its factors mean something else there, and are half of it.
            accounts += _strays(roles, what, [])
            continue
        for made in _modules(name, roles):
            if isinstance(made, Module) and made.key in modules:
                first = modules[made.key].format
                reason = f"the module has a `{first}` too, which is what ComfyUI takes"
                accounts += (Account(info.name, "skipped", reason) for info in made.roles.values())
                roles = {role: info for role, info in roles.items() if role not in made.roles}
            elif isinstance(made, Module):
                modules[made.key] = made
                accounts += (Account(info.name, "used") for info in made.roles.values())
                roles = {role: info for role, info in roles.items() if role not in made.roles}
            else:
                (damage if made.is_damage else unread).append(made)
                accounts += (Account(info.name, "skipped", made.text) for info in roles.values())
                roles = {}
        made_of = [modules[key].format for key in (name, f"{name}.bias") if key in modules]
        accounts += _strays(roles, foreign_modules.get(name), made_of)
    _widened(modules, grouped)
    if damage:
        raise _damaged(label, tensors, damage)
    for name in rest:
        if name in foreign:
            accounts.append(Account(name, "skipped", f"{foreign[name][1]}: not read"))
        else:
            accounts.append(Account(name, "unknown"))
    listed = {problem.name for problem in unread}
    unread += (
        Problem(module, f"is stored as {what}, which this version does not read", is_damage=False)
        for module, what in foreign_modules.items()
        if module not in listed and not others.is_harmless(what)
    )
    if not modules and not unread:
        raise _not_a_lora(label, tensors)
    return MappingProxyType(modules), tuple(unread), tuple(accounts)


def _scale_accounts(scales: Mapping[str, str], accounts: Iterable[Account]) -> tuple[Account, ...]:
    """Scales share the fate of the factors they belong to."""
    fates = {account.tensor: account for account in accounts}
    return tuple(replace(fates[factor], tensor=scale) for scale, factor in scales.items())


def _modules(name: str, roles: Mapping[str, TensorInfo]) -> Iterator[Module | Problem]:
    """What the tensors under one name make up: formats take theirs in order, until a problem stops them."""
    for one in FORMATS:
        while roles and (made := one.recognise(name, roles)):
            yield made
            if isinstance(made, Problem):
                return
            roles = {role: info for role, info in roles.items() if role not in made.roles}


def _strays(roles: Mapping[str, TensorInfo], foreign: str | None, made_of: list[str]) -> list[Account]:
    """Why roles are left over that no format took."""
    if not roles:
        return []
    reasons = dict(_STRAY)
    for name in made_of:
        reasons |= getattr(_format(name), "UNREAD", {})
    if foreign:
        reasons = dict.fromkeys(roles, f"belongs to {foreign}: not read")
    return [Account(info.name, "skipped", reasons.get(role, _UNUSED)) for role, info in roles.items()]


def _damaged(label: str, tensors: TensorFile, damage: list[Problem]) -> FileError:
    shown = "; ".join(f"`{brief(problem.name)}` {problem.text}" for problem in damage[:SHOWN])
    more = f"; and {len(damage) - SHOWN} more" if len(damage) > SHOWN else ""
    return FileError(
        f"`{tensors.path}` is damaged or of a format we do not read: {shown}{more}. Get {label} again."
    )


def _not_a_lora(label: str, tensors: TensorFile) -> FileError:
    names = list(tensors.infos)
    if not names:
        return FileError(f"`{tensors.path}` holds no tensors at all; it is damaged. Get it again.")
    if what := others.no_lora(names):
        return FileError(f"`{tensors.path}` is {what}")
    if others.looks_like_checkpoint(names):
        return FileError(
            f"`{tensors.path}` is a whole model, a checkpoint with {len(names):,} tensors, not a LoRA. Load"
            " it as the base model, and name a LoRA file here."
        )
    ends = Counter(map(_ending, names)).most_common(3)
    kinds = ", ".join(f"`.{brief(end)}` ({count})" for end, count in ends)
    return FileError(
        f"`{tensors.path}` has no LoRA factors: its {len(names):,} tensors end in {kinds}. It is of a"
        " format we do not read, or no LoRA."
    )


def _ending(name: str) -> str:
    """The last step of a name that says something of its kind."""
    head, _, last = name.rpartition(".")
    return f"{head.rpartition('.')[2]}.{last}" if head and last in ("weight", "bias") else last
